"""Stories of prices, change, discounts and savings, in dollars and cents. Three to eight steps."""

# ruff: noqa: E501  a sentence on one line can be read as one

from fractions import Fraction

from tinyzero_gsm8k.stories.telling import Story, Value, show

_GOODS = ("notebooks", "apples", "candles", "pens", "sandwiches", "mugs", "tomatoes", "lemons", "brushes", "bulbs")


def shopping(story: Story) -> Value:
    buyer, kinds = story.person(), story.number(2, 3)
    first = story.number(0, len(_GOODS) - 1)
    goods = [_GOODS[(first + 3 * index) % len(_GOODS)] for index in range(kinds)]
    counts = [story.number(2, 12) for _ in goods]
    prices = [Fraction(story.number(2, 39), 4) for _ in goods]
    parts = [f"{n} {name} at ${price(cost)} each" for n, name, cost in zip(counts, goods, prices, strict=True)]
    story.tell(
        f"{buyer} buys {', '.join(parts[:-1])} and {parts[-1]}.",
        f"At the market {buyer} takes {', '.join(parts[:-1])} and {parts[-1]}.",
    )
    story.idle(
        f"The shop is {story.choose(range(2, 30))} minutes from {buyer.his} home.",
        f"There are {story.choose(range(3, 15))} people in the queue.",
    )
    costs = [
        story.step(f"The {name} cost", n, "*", each, "dollars")
        for n, name, each in zip(counts, goods, prices, strict=True)
    ]
    total = costs[0]
    for cost in costs[1:]:
        total = story.step("Together that is", total, "+", cost, "dollars")
    if story.branch([True, False]):
        off = Fraction(story.number(1, 3), 4)
        story.tell(
            f"A coupon takes ${price(off)} off the total.", f"{buyer} has a coupon for ${price(off)} off the total."
        )
        total = story.step("With the coupon", total, "-", off, "dollars")
    if story.branch([True, False]):
        paid = -(-int(total + 1) // 10) * 10
        story.tell(f"{buyer.He} pays with ${paid}.", f"{buyer.He} hands over ${paid}.")
        total = story.step("The change is", paid, "-", total, "dollars")
        story.ask(f"How many dollars does {buyer.he} get back?", "How much change is that, in dollars?")
    else:
        story.ask(f"How many dollars does {buyer.he} pay?", "What does that cost in all, in dollars?")
    return total


def museum(story: Story) -> Value:
    adults, children, half = story.number(2, 9), story.number(2, 12), story.number(3, 15)
    place = story.choose(["museum", "zoo", "castle", "planetarium"])
    story.tell(
        f"A {place} ticket costs ${2 * half}, and children pay half of that. {adults} adults and {children} children go in.",
        f"A group of {adults} adults and {children} children visits a {place}. Adults pay ${2 * half} each, children half.",
    )
    story.idle(
        f"The tour takes {story.choose(range(30, 95, 5))} minutes.",
        f"The {place} has {story.choose(range(4, 40))} rooms.",
    )
    for_adults = story.step("The adults pay", adults, "*", 2 * half, "dollars")
    child = story.step("A child pays", 2 * half, "/", 2, "dollars")
    for_children = story.step("The children pay", children, "*", child, "dollars")
    total = story.step("Together they pay", for_adults, "+", for_children, "dollars")
    if story.branch([True, False]):
        snack = story.number(2, 6)
        story.tell(f"Everyone in the group also buys a drink for ${snack}.")
        people = story.step("People in the group", adults, "+", children)
        drinks = story.step("The drinks cost", people, "*", snack, "dollars")
        total = story.step("With the drinks that is", total, "+", drinks, "dollars")
    if story.branch([True, False]):
        paid = -(-int(total + 1) // 50) * 50
        story.tell(f"They pay with ${paid}.")
        total = story.step("They get back", paid, "-", total, "dollars")
        story.ask("How many dollars do they get back?")
    else:
        story.ask("How many dollars does the group spend?", "What does the group pay in all, in dollars?")
    return total


def sale(story: Story) -> Value:
    goods = story.choose(
        [("coat", "coats"), ("lamp", "lamps"), ("bicycle", "bicycles"), ("chair", "chairs"), ("radio", "radios")]
    )
    each, percent, count = story.number(4, 40, 5), story.number(1, 9, 5), story.number(2, 9)
    story.tell(
        f"A {goods[0]} costs ${each}, and today there is {percent}% off. A hotel buys {count} {goods[1]} today.",
        f"A shop sells {goods[1]} at ${each} each, but takes {percent}% off today. Today a customer buys {count} {goods[1]}.",
    )
    story.idle(
        f"The shop has {story.choose(range(20, 90))} {goods[1]} in store.",
        f"Yesterday {story.choose(range(2, 9))} other customers came.",
    )
    off = story.step(f"{percent}% of the price is", each, "*", Fraction(percent, 100), "dollars")
    price_today = story.step("Today the price is", each, "-", off, "dollars")
    total = story.step("All of them cost", count, "*", price_today, "dollars")
    if story.branch([True, False]):
        delivery = story.number(3, 30)
        story.tell(
            f"Delivery of the whole order costs ${delivery}.",
            f"There is also a fee of ${delivery} for delivery of the whole order.",
        )
        total = story.step("With the delivery", total, "+", delivery, "dollars")
    story.ask("What is the bill, in dollars?", "How many dollars is that in all?")
    return total


def savings(story: Story) -> Value:
    saver, goods = story.person(), story.choose(["a guitar", "a tent", "a camera", "a skateboard", "a telescope"])
    weekly, spent, weeks = story.number(12, 40), story.number(2, 9), story.number(3, 25)
    gift = story.number(10, 60)
    cost = (weekly - spent) * weeks + gift
    story.tell(
        f"{saver} earns ${weekly} every week and spends ${spent} of it. The rest {saver.he} saves.",
        f"Every week {saver} gets ${weekly}, spends ${spent} and saves the rest.",
    )
    story.idle(
        f"{saver.His} brother saves ${story.choose(range(3, 30))} a week.",
        f"{saver} is {story.choose(range(9, 17))} years old.",
    )
    story.tell(
        f"{saver.He} already has ${gift} and wants to buy {goods} for ${cost}.",
        f"{goods[0].upper()}{goods[1:]} costs ${cost}, and {saver.he} already has ${gift}.",
    )
    missing = story.step("Still missing", cost, "-", gift, "dollars")
    saved = story.step("Saved each week", weekly, "-", spent, "dollars")
    result = story.step("Weeks needed", missing, "/", saved)
    if story.branch([True, False]):
        story.ask(f"After how many weeks can {saver.he} pay for it?", f"How many weeks does {saver.he} have to save?")
        return result
    story.ask(f"How many days does {saver.he} have to save, if every week counts 7 days?")
    return story.step("In days", result, "*", 7, "days")


def price(value: Fraction) -> str:
    """Dollars and cents, as a price tag shows them."""
    text = show(value)
    return text if "." in text else f"{text}.00"


TEMPLATES = (shopping, museum, sale, savings)
