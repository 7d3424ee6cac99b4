"""The words that may stand around the number of an answer, for the scorer alone. Data only.

A word that stands in none of these lists makes an answer malformed: no list of what denies or changes a number is ever
complete, so these hold what leaves it alone. The second opinion has lists of its own, to share none of their gaps.
"""

MULTIPLIERS = {"hundred": 100, "thousand": 1_000, "million": 10**6, "billion": 10**9, "trillion": 10**12}
"""Words directly behind a number that multiply it."""

NEGATIVE = frozenset({"minus", "negative"})
"""Words directly before a number that negate it; anywhere else they make an answer malformed."""

CURRENCIES = frozenset({"USD", "EUR", "GBP", "INR", "CAD", "AUD", "JPY", "CHF", "Rs", "US", "CA", "C", "A", "AU", "NZ"})
"""Codes directly before a number or its sign of currency, or behind it."""

ASKING = frozenset({"is", "are", "was", "were", "has", "have", "had", "will"})
"""Verbs that ask where they stand first: "Is the answer 42"."""

VERBS = ASKING | frozenset({
    "be", "equals", "cost", "costs", "total", "totals", "make", "makes", "made", "earn", "earns", "earned", "pay",
    "pays", "paid", "need", "needs", "needed", "get", "gets", "got", "sell", "sells", "sold", "buy", "buys",
    "bought", "spend", "spends", "spent", "save", "saves", "saved", "eat", "eats", "ate", "read", "reads", "use",
    "uses", "used", "give", "gives", "gave", "receive", "receives", "received", "collect", "collects",
    "collected", "take", "takes", "took", "drive", "drives", "drove", "walk", "walks", "walked", "run", "runs",
    "ran", "travel", "travels", "traveled", "bake", "bakes", "baked", "pick", "picks", "picked", "plant",
    "plants", "planted", "keep", "keeps", "kept", "scored", "weigh", "weighs", "weighed", "find", "finds",
    "found", "contain", "contains", "contained", "hold", "holds", "held", "produce", "produces", "produced",
    "charge", "charges", "charged", "catch", "catches", "caught", "bring", "brings", "brought",
})  # fmt: skip
"""What directly before the number states it."""

RESULTS = frozenset({"answer", "result", "total", "altogether", "so", "therefore", "thus", "hence", "exactly"})
"""What may stand there instead, where no verb asks."""

SAYING = frozenset({
    "the", "a", "an", "his", "her", "their", "our", "my", "its", "this", "that", "these", "all", "each", "every",
    "of", "in", "for", "at", "on", "per", "and", "then", "now", "still", "also", "he", "she", "it", "they",
    "there", "we", "you", "i", "who", "both", "together", "must", "will", "final", "correct", "right", "x", "y",
    "number", "amount", "sum", "cost", "price", "profit", "income", "salary", "value", "change", "money", "time",
    "distance", "length", "width", "height", "area", "perimeter", "volume", "speed", "age", "weight", "size",
    "rate", "bill", "fee", "savings", "discount", "left", "remaining", "new", "day", "week", "month", "year",
    "hour", "minute", "trip", "box", "bag", "group", "family", "class", "school", "person", "garden", "field",
    "room", "house", "pool", "yard", "team", "store", "shop", "student", "child", "children", "people", "men",
    "women", "friend", "friends", "egg", "cake", "apple", "book", "pencil", "ticket", "shirt", "many", "much",
    "how", "more", "fewer",
})  # fmt: skip
"""What else may stand in the sentence before the number."""

BEFORE_PLURALS = frozenset({
    "of", "the", "many", "more", "fewer", "all", "both", "his", "her", "their", "our", "my", "new", "remaining",
    "each", "egg", "cake",
})  # fmt: skip
"""Words of the sentence behind which a plural is a thing: elsewhere it may be a verb, as in "he denies"."""

NAMELESS = frozenset({
    "no", "not", "none", "nor", "never", "nobody", "nothing", "nowhere", "neither", "nope", "hardly", "scarcely",
    "barely", "rarely", "seldom", "anything", "anyone", "anybody", "without", "except", "unless", "wrong",
    "false", "maybe", "perhaps", "possibly", "probably", "presumably", "likely", "doubt", "unsure", "unknown",
    "impossible", "hypothetically", "supposedly", "allegedly", "nearly", "almost", "about", "around", "roughly",
    "approximately", "over", "under", "above", "below", "beyond", "least", "most", "maximum", "minimum", "max",
    "min", "up", "less", "than", "if", "when", "whether", "suppose", "assume", "imagine", "guess", "else",
    "instead", "either", "or", "but", "yet", "what", "where", "why", "which", "can", "could", "would", "should",
    "might", "may", "do", "does", "did", "half", "twice", "thrice", "double", "triple", "quadruple", "third",
    "quarter", "fourth", "fifth", "point", "dozen", "score", "gross", "lakh", "crore", "pair", "couple", "zero",
    "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen",
    "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty", "thirty", "forty", "fifty",
    "sixty", "seventy", "eighty", "ninety", "hundred", "thousand", "million", "billion", "trillion", "plus",
    "minus", "negative", "times", "by", "mod", "modulo", "divided", "multiplied", "squared", "cubed", "factorial",
    "root", "square", "cube", "power", "log", "sin", "cos", "tan", "reciprocal", "inverse", "opposite",
    "absolute", "remainder", "fewer", "more", "some", "several", "many", "few",
})  # fmt: skip
"""What is no name, although it begins with a capital as a sentence does."""

MODIFIERS = frozenset({
    "more", "fewer", "additional", "extra", "other", "remaining", "total", "full", "whole", "new", "old", "red",
    "blue", "green", "yellow", "white", "black", "brown", "pink", "purple", "orange", "big", "small", "large",
    "little", "square", "cubic", "chocolate", "apple", "duck", "chicken", "tennis", "toy", "baby", "paper",
    "pizza", "ice", "cream", "gold", "silver", "different", "free", "fresh", "empty",
})  # fmt: skip
"""What may stand between the number and its unit."""

UNITS = frozenset({
    "dollar", "cent", "euro", "pound", "rupee", "yen", "apple", "egg", "cookie", "day", "hour", "minute",
    "second", "week", "month", "year", "mile", "meter", "metre", "kilometer", "kilometre", "centimeter", "foot",
    "feet", "inch", "yard", "acre", "gallon", "liter", "litre", "cup", "ounce", "gram", "kilogram", "ton",
    "degree", "percent", "unit", "item", "person", "people", "child", "children", "man", "men", "woman", "women",
    "student", "mouse", "mice", "fish", "sheep", "deer", "geese", "teeth", "money", "fruit", "fabric", "water",
    "milk", "piece", "page", "ticket", "trip", "box", "bag", "car", "glass", "class", "toy", "ball", "tree",
    "plant", "flower", "slice", "bus", "minutes", "hours", "days", "weeks", "months", "years", "Celsius",
    "Fahrenheit",
})  # fmt: skip
"""Units in the singular, and such plurals as are not regular."""

ABBREVIATIONS = frozenset({
    "kg", "g", "mg", "lb", "lbs", "oz", "km", "m", "cm", "mm", "mi", "ft", "in", "yd", "h", "hr", "hrs", "min",
    "mins", "s", "sec", "secs", "mph", "kmh", "kph", "L", "l", "ml", "mL", "gal", "F", "C",
})  # fmt: skip
"""Units of measure as they are abbreviated, but behind no currency: there `m` is a million."""

NO_UNITS = frozenset({
    "ones", "twos", "threes", "fours", "fives", "sixes", "sevens", "eights", "nines", "tens", "elevens",
    "twelves", "twenties", "thirties", "forties", "fifties", "sixties", "seventies", "eighties", "nineties",
    "dozens", "scores", "pairs", "couples", "trios", "hundreds", "thousands", "millions", "billions", "trillions",
    "zillions", "lakhs", "lacs", "crores", "grands", "halves", "thirds", "quarters", "doubles", "triples",
    "times", "powers", "roots", "cubes", "squares", "multiples", "reciprocals", "inverses", "modulos",
    "factorials", "exceeds", "fails", "misses", "lacks", "seems", "looks", "sounds", "equals", "overshoots",
    "undershoots", "contradicts", "divides", "subtracts", "adds", "multiplies", "doubts", "denies", "errors",
    "perhaps", "besides", "whereas", "sometimes", "always", "afterwards", "towards", "upwards", "downwards",
    "onwards", "does", "gives", "makes", "means", "needs", "costs", "takes", "goes", "stays", "exponents",
    "minuses", "pluses", "decimals", "negatives", "positives", "opposites",
})  # fmt: skip
"""What looks like a plural, and is a number, an operation, or a verb."""

NUMERAL_ENDINGS = ("ss", "us", "is", "teens", "ths", "plets", "illions", "illiards")
"""Endings of what is no plural of a thing."""

FOLLOWING = frozenset({
    "left", "remaining", "altogether", "total", "all", "each", "every", "per", "day", "hour", "week", "month",
    "year", "today", "now", "more", "fewer", "old", "long", "tall", "wide", "deep", "away", "in", "on", "at",
    "for", "and", "of", "the", "a", "an", "his", "her", "their", "than", "him", "them", "market", "farm", "store",
    "school", "home", "shop", "party", "farmer", "together", "needed", "sold", "April", "May", "June", "July",
    "August", "September", "October", "November", "December", "January", "February", "March",
})  # fmt: skip
"""What may follow the number and its unit."""

OPENERS = frozenset({"in", "on", "at", "for", "and", "of", "the", "a", "an", "his", "her", "their", "per", "every"})
"""Such of them as something must follow: a unit, a plural, or (but for the articles) a name."""

ENDINGS = tuple(tuple(text.split()) for text in (
    "is the answer", "is the final answer", "is the correct answer", "is the total", "is the result", "are left",
    "is left", "are needed", "are remaining", "were sold", "were left",
))  # fmt: skip
"""Ends of a sentence that begins with the number."""
