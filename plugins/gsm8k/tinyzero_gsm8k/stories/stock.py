"""Stories of a stock that grows and shrinks: loaves, books, eggs, stamps. Two to eight steps."""

# ruff: noqa: E501  a sentence on one line can be read as one

from collections.abc import Sequence

from tinyzero_gsm8k.stories.telling import Story, Value


def bakery(story: Story) -> Value:
    trays, loaves = story.number(6, 40), story.number(5, 30)
    baker, bread = story.person(), story.choose(["loaves", "rolls", "bagels", "muffins"])
    story.tell(
        f"{baker} bakes {trays} trays of {bread} with {loaves} {bread} on each tray.",
        f"In {baker}'s bakery, {trays} trays come out of the oven, each with {loaves} {bread}.",
    )
    story.idle(
        f"The oven is {story.choose(range(3, 20))} years old.",
        f"The bakery opens at {story.choose(range(5, 9))} in the morning.",
    )
    baked = story.step("All trays together", trays, "*", loaves, bread)
    left = _changes(
        story,
        baked,
        bread,
        grows=["{n} more {things} come from the second oven.", "A helper bakes another {n} {things}."],
        shrinks=[
            "A school buys {n} {things}.",
            "{n} {things} are sold over the counter.",
            "A hotel takes {n} {things}.",
            "{n} {things} are given to a food bank.",
        ],
    )
    story.ask(f"How many {bread} are left?", f"How many {bread} does the bakery still have?")
    return left


def library(story: Story) -> Value:
    shelves, books = story.number(5, 30), story.number(10, 60)
    story.tell(
        f"A library has {shelves} shelves with {books} books on each.",
        f"There are {shelves} shelves in a library, and each holds {books} books.",
    )
    story.idle(
        f"It is open {story.choose(range(4, 11))} hours a day.",
        f"{story.choose(range(2, 9))} librarians work there.",
    )
    owned = story.step("At first", shelves, "*", books, "books")
    left = _changes(
        story,
        owned,
        "books",
        grows=[
            "The library buys {n} new {things}.",
            "{n} {things} that were lent out come back.",
            "A reader donates {n} {things}.",
        ],
        shrinks=[
            "{n} {things} are lent out.",
            "{n} worn {things} are thrown away.",
            "The library gives {n} {things} to a school.",
        ],
    )
    story.ask("How many books are on its shelves now?", "How many books does that leave on the shelves?")
    return left


def farm(story: Story) -> Value:
    hens, eggs, days = story.number(8, 40), story.number(2, 6), story.number(2, 6)
    farmer = story.person()
    story.tell(
        f"{farmer} has {hens} hens, and each lays {eggs} eggs a week. {farmer.He} collects the eggs for {days} weeks.",
        f"Each of {farmer}'s {hens} hens lays {eggs} eggs a week, and {farmer.he} collects them all for {days} weeks.",
    )
    story.idle(
        f"{farmer.He} also keeps {story.choose(range(2, 30))} sheep.",
        f"The farm is {story.choose(range(3, 40))} km from the town.",
    )
    weekly = story.step("Eggs a week", hens, "*", eggs)
    collected = story.step("In all weeks", weekly, "*", days, "eggs")
    left = _changes(
        story,
        collected,
        "eggs",
        most=5,
        grows=["A neighbour brings another {n} {things}.", "{n} more {things} come from the hens next door."],
        shrinks=["{n} {things} break.", "{n} {things} are sold at the market.", "A restaurant buys {n} {things}."],
    )
    story.ask(f"How many eggs does {farmer} have now?", "How many eggs are there in the end?")
    return left


def stamps(story: Story) -> Value:
    albums, pages, stamps_per_page = story.number(2, 6), story.number(5, 20), story.number(4, 12)
    owner = story.person()
    story.tell(
        f"{owner} has {albums} albums with {pages} pages each, and there are {stamps_per_page} stamps on every page.",
        f"{owner} keeps {owner.his} stamps in {albums} albums. Each album has {pages} pages, and each page {stamps_per_page} stamps.",
    )
    story.idle(
        f"{owner.His} oldest stamp is {story.choose(range(60, 150))} years old.",
        f"{owner} is {story.choose(range(10, 70))} years old.",
    )
    in_album = story.step("Stamps in one album", pages, "*", stamps_per_page)
    owned = story.step("In all albums", albums, "*", in_album, "stamps")
    left = _changes(
        story,
        owned,
        "stamps",
        most=5,
        grows=["{n} {things} arrive by post.", "A friend adds {n} {things} to the collection."],
        shrinks=["{n} {things} are sold.", "{n} {things} are given away.", "{n} {things} are lost."],
    )
    story.ask(f"How many stamps does {owner} have now?", "How many stamps are in the collection now?")
    return left


def _changes(
    story: Story, stock: Value, things: str, grows: Sequence[str], shrinks: Sequence[str], most: int = 6
) -> Value:
    """Some changes of the stock, never below zero, each with a number of its own."""
    used: set[str] = set()
    for _ in range(story.number(1, most)):
        grow = story.branch([False, False, True]) or stock < 20
        templates = [template for template in (grows if grow else shrinks) if template not in used] or (
            grows if grow else shrinks
        )
        amount = story.number(3, 60) if grow else story.number(2, int(stock) // 4)
        template = story.choose(templates)
        used.add(template)
        again = "Later, " if len(used) > 2 and story.choose([True, False]) else ""
        sentence = template.format(n=amount, things=things)
        story.tell(again + (sentence[0].lower() + sentence[1:] if again else sentence))
        stock = story.step("Then there are", stock, "+" if grow else "-", amount, things)
    return stock


TEMPLATES = (bakery, library, farm, stamps)
