"""Stories that compare and divide: so many times as many, a fraction of a class, shares, ages. Two to eight steps."""

# ruff: noqa: E501  a sentence on one line can be read as one

from fractions import Fraction
from itertools import pairwise

from tinyzero_gsm8k.stories.telling import Story, Value

_TIMES = {2: "twice", 3: "three times", 4: "four times", 5: "five times"}


def collectors(story: Story) -> Value:
    things = story.choose(["marbles", "shells", "stickers", "cards", "coins", "buttons"])
    people = [story.person() for _ in range(story.number(2, 4))]
    owned = [story.number(5, 40)]
    story.tell(f"{people[0]} has {owned[0]} {things}.", f"{people[0]} owns {owned[0]} {things}.")
    amounts: list[Value] = [owned[0]]
    for before, person in pairwise(people):
        match story.branch(["times", "more", "fewer"]):
            case "times":
                times = story.number(2, 5)
                story.tell(f"{person} has {_TIMES[times]} as many {things} as {before}.")
                amounts.append(story.step(f"{person} has", amounts[-1], "*", times, things))
            case "more":
                more = story.number(2, 30)
                story.tell(f"{person} has {more} more {things} than {before}.")
                amounts.append(story.step(f"{person} has", amounts[-1], "+", more, things))
            case _:
                fewer = story.number(1, int(amounts[-1]) - 1)
                story.tell(f"{person} has {fewer} fewer {things} than {before}.")
                amounts.append(story.step(f"{person} has", amounts[-1], "-", fewer, things))
    story.idle(
        f"{people[-1]} is {story.choose(range(8, 15))} years old.",
        f"They meet {story.choose(range(2, 7))} times a month.",
    )
    total = amounts[0]
    for person, amount in zip(people[1:], amounts[1:], strict=True):
        total = story.step(f"With those of {person}", total, "+", amount, things)
    story.ask(f"How many {things} do they have together?", f"How many {things} is that in all?")
    return total


def classroom(story: Story) -> Value:
    parts, part_size = story.number(3, 8), story.number(2, 12, 2)
    some = story.number(1, parts - 1)
    everyone = parts * part_size
    group, sport = (
        story.choose(["school", "club", "camp", "choir"]),
        story.choose(["football", "chess", "tennis", "the piano"]),
    )
    story.tell(
        f"{some}/{parts} of the {everyone} children in a {group} play {sport}.",
        f"A {group} has {everyone} children, and {some}/{parts} of them play {sport}.",
    )
    story.idle(
        f"The {group} was founded {story.choose(range(5, 90))} years ago.",
        f"Lessons start at {story.choose(range(7, 10))} o'clock.",
    )
    part = story.step(f"1/{parts} of the children are", everyone, "/", parts)
    players = story.step(f"{some}/{parts} are", part, "*", some)
    match story.branch(["others", "half", "more"]):
        case "others":
            story.ask(f"How many children do not play {sport}?")
            return story.step("The others are", everyone, "-", players)
        case "half":
            story.tell(f"Half of those who play {sport} are beginners.")
            story.ask(f"How many of the children who play {sport} are beginners?")
            return story.step("Half of them are", players, "/", 2)
        case _:
            joining = story.number(2, 20)
            story.tell(f"Then {joining} new children join the {group}, and all of them play {sport}.")
            players = story.step(f"Who play {sport} now", players, "+", joining)
            everyone_now = story.step("All children now", everyone, "+", joining)
            story.ask(f"How many children of the {group} do not play {sport} now?")
            return story.step("The others are", everyone_now, "-", players)


def sharing(story: Story) -> Value:
    bags, friends = story.number(2, 9), story.number(3, 9)
    share, kept = story.number(4, 20), story.number(1, 20)
    total = friends * share + kept
    per_bag, loose = divmod(total, bags)
    giver, sweets = story.person(), story.choose(["sweets", "nuts", "cherries", "biscuits", "raisins"])
    story.tell(
        f"{giver} has {bags} bags with {per_bag} {sweets} each" + (f" and {_loose(loose)}." if loose else "."),
        f"There are {per_bag} {sweets} in each of {giver}'s {bags} bags"
        + (f", and {_loose(loose)} beside them." if loose else "."),
    )
    story.idle(
        f"A bag weighs {story.choose(range(100, 900, 50))} grams.",
        f"{giver} paid ${story.choose(range(2, 9))} for a bag.",
    )
    owned = story.step("In the bags", bags, "*", per_bag, sweets)
    if loose:
        owned = story.step("With the loose ones", owned, "+", loose, sweets)
    story.tell(
        f"{giver.He} eats {kept} of them and shares the rest equally among {friends} friends.",
        f"{giver.He} eats {kept}. The others {giver.he} divides equally among {friends} friends.",
    )
    rest = story.step("To be shared", owned, "-", kept, sweets)
    story.ask(f"How many {sweets} does each friend get?")
    return story.step("Each friend gets", rest, "/", friends, sweets)


def _loose(count: int) -> str:
    return "1 loose one" if count == 1 else f"{count} loose ones"


def ages(story: Story) -> Value:
    child, parent = story.person(), story.person()
    age, times, years = story.number(3, 14), story.number(2, 5), story.number(2, 20)
    story.tell(
        f"{child} is {age} years old, and {parent} is {_TIMES[times]} as old.",
        f"{parent} is {_TIMES[times]} as old as {child}, who is {age}.",
    )
    story.idle(
        f"They live {story.choose(range(2, 90))} km apart.", f"They meet {story.choose(range(2, 7))} times a month."
    )
    other = story.step(f"{parent} is", age, "*", times, "years old")
    later = story.step(f"{child} will be", age, "+", years, "years old")
    other_later = story.step(f"{parent} will be", other, "+", years, "years old")
    if story.branch([True, False]):
        story.ask(
            f"How old will they be together in {years} years?", f"What will be the sum of their ages in {years} years?"
        )
        return story.step("Together", later, "+", other_later, "years")
    story.ask(f"What will be the average of their two ages in {years} years?")
    both = story.step("Together", later, "+", other_later, "years")
    return story.step("On average", both, "/", 2, "years")


def recipe(story: Story) -> Value:
    cook, food = story.person(), story.choose(["flour", "milk", "rice", "sugar"])
    quarters, servings, batches = story.number(1, 11), story.number(2, 8), story.number(2, 12)
    amount = Fraction(quarters, 4)
    whole, rest = divmod(quarters, 4)
    part = {0: "", 1: "1/4", 2: "1/2", 3: "3/4"}[rest]
    written = " ".join(filter(None, [str(whole) if whole else "", part]))
    cups = "cup" if quarters <= 4 else "cups"
    story.tell(
        f"A recipe for {servings} servings takes {written} {cups} of {food}. {cook} wants to make {servings * batches} servings.",
        f"{cook} needs {written} {cups} of {food} for every {servings} servings, and makes {servings * batches} servings.",
    )
    story.idle(
        f"It stays in the oven for {story.choose(range(20, 95, 5))} minutes.",
        f"{cook.He} has {story.choose(range(2, 9))} pots.",
    )
    times = story.step("Times the recipe", servings * batches, "/", servings)
    needed = story.step("Needed", times, "*", amount, "cups")
    if story.branch([True, False]):
        has = Fraction(story.number(1, max(1, int(needed) - 1)))
        story.tell(f"{cook.He} already has {has} {'cup' if has == 1 else 'cups'} of {food}.")
        if has < needed:
            story.ask(f"How many more cups of {food} does {cook.he} need?")
            return story.step("Still missing", needed, "-", has, "cups")
        story.ask(f"How many cups of {food} are left afterwards?")
        return story.step("Left over", has, "-", needed, "cups")
    story.ask(f"How many cups of {food} does {cook.he} need?", f"How many cups of {food} is that?")
    return needed


TEMPLATES = (collectors, classroom, sharing, ages, recipe)
