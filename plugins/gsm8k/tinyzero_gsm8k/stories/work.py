"""Stories of wages and production. Three to seven steps."""

# ruff: noqa: E501  a sentence on one line can be read as one

from fractions import Fraction

from tinyzero_gsm8k.stories.telling import Story, Value


def wages(story: Story) -> Value:
    worker = story.person()
    wage, hours, days = story.number(5, 20, 2), story.number(3, 8), story.number(2, 6)
    story.tell(
        f"{worker} works {hours} hours a day for {days} days and earns ${wage} an hour.",
        f"For ${wage} an hour, {worker} works {hours} hours on each of {days} days.",
    )
    story.idle(
        f"{worker.His} way to work takes {story.choose(range(5, 60, 5))} minutes.",
        f"{worker.He} has {story.choose(range(2, 30))} colleagues.",
    )
    time = story.step("Hours", hours, "*", days)
    total = story.step("Wage", time, "*", wage, "dollars")
    if story.branch([True, False]):
        extra = story.number(2, 9)
        story.tell(f"On top of that {worker.he} works {extra} hours of overtime, at one and a half times the wage.")
        rate = story.step("An hour of overtime pays", wage, "*", Fraction(3, 2), "dollars")
        overtime = story.step("Overtime", extra, "*", rate, "dollars")
        total = story.step("With the overtime", total, "+", overtime, "dollars")
    if story.branch([True, False]):
        percent = story.number(1, 8, 5)
        story.tell(
            f"{percent}% of all {worker.he} earns goes to taxes.", f"Of all {worker.he} earns, {percent}% are taxes."
        )
        tax = story.step(f"{percent}% of it", total, "*", Fraction(percent, 100), "dollars")
        total = story.step("After taxes", total, "-", tax, "dollars")
        story.ask(f"How many dollars does {worker.he} keep?")
    else:
        story.ask(f"How many dollars does {worker.he} earn in all?")
    return total


def factory(story: Story) -> Value:
    machines, rate, hours = story.number(3, 20), story.number(1, 8, 20), story.number(2, 10)
    goods = story.choose(["toys", "screws", "bottles", "lamps", "cups"])
    story.tell(
        f"A factory has {machines} machines, and each makes {rate} {goods} an hour. They run for {hours} hours.",
        f"{machines} machines run for {hours} hours, and each of them makes {rate} {goods} an hour.",
    )
    story.idle(
        f"Each machine weighs {story.choose(range(200, 900, 50))} kg.",
        f"{story.choose(range(5, 60))} people work in the factory.",
    )
    hourly = story.step("Each hour", machines, "*", rate, goods)
    produced = story.step("In all hours", hourly, "*", hours, goods)
    some_are_faulty = story.branch([True, False])
    if some_are_faulty:
        percent = story.number(1, 4, 5)
        story.tell(
            f"{percent}% of the {goods} are broken and thrown away.",
            f"Of the {goods} made, {percent}% are faulty and thrown away.",
        )
        broken = story.step(f"{percent}% of them", produced, "*", Fraction(percent, 100), goods)
        produced = story.step("Good ones", produced, "-", broken, goods)
    if produced % 10 == 0 and story.branch([True, False]):
        story.tell(f"{'The others' if some_are_faulty else 'All'} are packed in boxes of 10.")
        story.ask("How many boxes does that fill?")
        return story.step("Boxes", produced, "/", 10)
    story.ask(f"How many {goods} are ready for sale?", f"How many good {goods} does that give?")
    return produced


def orchard(story: Story) -> Value:
    rows, trees, kilos = story.number(3, 15), story.number(4, 20), story.number(5, 40)
    fruit, price = story.choose(["apples", "pears", "plums", "cherries"]), Fraction(story.number(2, 20), 4)
    owner = story.person()
    story.tell(
        f"{owner} has an orchard of {rows} rows with {trees} trees in each row, and every tree gives {kilos} kg of {fruit}.",
        f"In {owner}'s orchard there are {rows} rows of {trees} trees. Every tree gives {kilos} kg of {fruit}.",
    )
    story.idle(
        f"The trees are {story.choose(range(4, 30))} years old.",
        f"The harvest takes {story.choose(range(3, 20))} days.",
    )
    planted = story.step("Trees", rows, "*", trees)
    picked = story.step("Harvest", planted, "*", kilos, "kg")
    kept = story.number(1, 40)
    story.tell(f"{owner.He} keeps {kept} kg.", f"{kept} kg spoil." if kept > 1 else f"{kept} kg spoils.")
    left = story.step("What is left", picked, "-", kept, "kg")
    if story.branch([True, False]):
        story.tell(f"The rest is sold at ${float(price):.2f} a kilo.")
        story.ask(f"How many dollars does {owner.he} get for it?")
        return story.step("The sale brings", left, "*", price, "dollars")
    story.ask(f"How many kilos of {fruit} are left?")
    return left


TEMPLATES = (wages, factory, orchard)
