"""Stories of distance, speed, time and length. Two to seven steps."""

# ruff: noqa: E501  a sentence on one line can be read as one

from fractions import Fraction

from tinyzero_gsm8k.stories.telling import Story, Value


def trip(story: Story) -> Value:
    driver = story.person()
    legs = story.number(2, 3)
    speeds, hours = [story.number(8, 22, 5) for _ in range(legs)], [story.number(1, 5) for _ in range(legs)]
    story.tell(
        f"{driver} drives for {_hours(hours[0])} at {speeds[0]} km/h.",
        f"{driver} first drives {_hours(hours[0])} at a speed of {speeds[0]} km/h.",
    )
    story.idle(
        f"The car is {story.choose(range(2, 18))} years old.",
        f"There are {story.choose(range(2, 5))} bags in the boot.",
    )
    for speed, time in zip(speeds[1:], hours[1:], strict=True):
        story.tell(
            f"Then {driver.he} drives for {_hours(time)} at {speed} km/h.",
            f"After that {driver.he} drives {_hours(time)} more at {speed} km/h.",
        )
    parts = [story.step("That part is", speed, "*", time, "km") for speed, time in zip(speeds, hours, strict=True)]
    total = parts[0]
    for part in parts[1:]:
        total = story.step("So far", total, "+", part, "km")
    if story.branch([True, False]):
        left = story.number(5, 90)
        story.tell(f"The whole way is {total + left} km.")
        story.ask(f"How many km does {driver.he} still have to go?", "How many kilometres are left?")
        return story.step("Left", total + left, "-", total, "km")
    story.ask(f"How many km has {driver.he} driven?", "How many kilometres is that in all?")
    return total


def schedule(story: Story) -> Value:
    worker = story.person()
    count, minutes, pause = story.number(3, 12), story.number(4, 18, 5), story.number(1, 6, 5)
    task, verb = story.choose([("lessons", "gives"), ("haircuts", "does"), ("meetings", "has"), ("exams", "grades")])
    story.tell(
        f"{worker} {verb} {count} {task} of {minutes} minutes each, with {pause} minutes of rest between one and the next.",
        f"Today {worker} {verb} {count} {task}. Each takes {minutes} minutes, and between two of them there are {pause} minutes of rest.",
    )
    story.idle(
        f"{worker.He} earns ${story.choose(range(12, 60))} for each.",
        f"{worker.He} had {story.choose(range(2, 9))} of them yesterday.",
    )
    busy = story.step("At work", count, "*", minutes, "minutes")
    gaps = story.step("Pauses", count, "-", 1)
    resting = story.step("At rest", gaps, "*", pause, "minutes")
    total = story.step("From start to end", busy, "+", resting, "minutes")
    match story.branch(["minutes", "seconds", "spare"]):
        case "minutes":
            story.ask("How many minutes pass from the start of the first to the end of the last?")
            return total
        case "seconds":
            story.ask("How many seconds pass from the start of the first to the end of the last?")
            return story.step("In seconds", total, "*", 60, "seconds")
        case _:
            hours = -(-int(total + 1) // 60)
            story.tell(f"The room is free for {_hours(hours)}, from the start of the first on.")
            story.ask("For how many minutes is the room empty after the last one ends?")
            free = story.step("The room is free for", hours, "*", 60, "minutes")
            return story.step("Empty for", free, "-", total, "minutes")


def garden(story: Story) -> Value:
    length, width = story.number(6, 40), story.number(3, 30)
    owner, place = story.person(), story.choose(["garden", "field", "yard", "meadow"])
    story.tell(
        f"{owner}'s rectangular {place} is {length} m long and {width} m wide.",
        f"{owner} has a rectangular {place} of {length} m by {width} m.",
    )
    story.idle(
        f"There are {story.choose(range(2, 12))} trees in it.",
        f"It lies {story.choose(range(50, 900, 50))} m above the sea.",
    )
    if story.branch(["fence", "seed"]) == "fence":
        gate, cost = story.number(1, 3), story.number(3, 25)
        story.tell(
            f"{owner.He} puts a fence all around it, but for a gate of {gate} m. A metre of fence costs ${cost}.",
            f"A fence at ${cost} a metre goes all the way around, but for {gate} m where there is a gate.",
        )
        sides = story.step("Length and width", length, "+", width, "m")
        around = story.step("All around", sides, "*", 2, "m")
        fence = story.step("Without the gate", around, "-", gate, "m")
        story.ask("What does the fence cost, in dollars?")
        return story.step("The fence costs", fence, "*", cost, "dollars")
    grams, pond = story.number(2, 9, 5), story.number(2, 17)
    story.tell(
        f"A pond covers {pond} square metres of it. Everywhere else {owner.he} sows {grams} g of seed on each square metre.",
        f"{owner.He} sows {grams} g of seed on every square metre, but for {pond} square metres where there is a pond.",
    )
    area = story.step("The whole area", length, "*", width, "square metres")
    sown = story.step("Without the pond", area, "-", pond, "square metres")
    story.ask(f"How many grams of seed does {owner.he} need?")
    return story.step("Seed", sown, "*", grams, "grams")


def reading(story: Story) -> Value:
    reader, book = story.person(), story.choose(["novel", "diary", "history book", "biography"])
    slow, slow_days, fast, fast_days = (
        story.number(5, 30),
        story.number(2, 7),
        story.number(10, 60),
        story.number(2, 15),
    )
    pages = slow * slow_days + fast * fast_days
    story.tell(
        f"{reader} reads a {book} of {pages} pages. On each of the first {slow_days} days {reader.he} reads {slow} pages.",
        f"A {book} has {pages} pages. For {slow_days} days {reader} reads {slow} pages a day.",
    )
    story.idle(
        f"The {book} cost ${story.choose(range(5, 30))}.", f"It was printed {story.choose(range(3, 80))} years ago."
    )
    story.tell(f"From then on {reader.he} reads {fast} pages a day until the end.")
    read = story.step("Read at first", slow, "*", slow_days, "pages")
    left = story.step("Left", pages, "-", read, "pages")
    days = story.step("More days", left, "/", fast)
    if story.branch([True, False]):
        story.ask("How many more days does that take?")
        return days
    story.ask("How many days does the whole book take?")
    return story.step("All days", days, "+", slow_days)


def _hours(count: int) -> str:
    return "1 hour" if count == 1 else f"{count} hours"


def tank(story: Story) -> Value:
    litres, inflow, outflow = story.number(10, 90, 10), story.number(6, 30), story.number(1, 5)
    minutes, half = story.number(4, 30), story.number(0, 1)
    time = minutes + Fraction(half, 2)
    written = f"{minutes} and a half minutes" if half else f"{minutes} minutes"
    where = story.choose(["tank", "pool", "basin"])
    story.tell(
        f"A {where} holds {litres} litres of water. A tap adds {inflow} litres a minute, and a leak loses {outflow} a minute.",
        f"There are {litres} litres of water in a {where}. Each minute {inflow} litres flow in and {outflow} flow out.",
    )
    story.idle(f"The {where} is {story.choose(range(2, 9))} m long.", f"The water has {story.choose(range(8, 30))} °C.")
    gain = story.step("Each minute brings", inflow, "-", outflow, "litres")
    added = story.step("In that time", gain, "*", time, "litres")
    story.ask(f"How many litres are in it after {written}?")
    return story.step("Then it holds", litres, "+", added, "litres")


TEMPLATES = (trip, schedule, garden, reading, tank)
