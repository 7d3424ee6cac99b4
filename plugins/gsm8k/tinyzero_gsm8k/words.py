"""The words that may stand around the number of an answer, for the scorer alone. Data only.

A word that stands in none of these lists makes an answer malformed: no list of what denies or changes a number is ever
complete, so these hold what leaves it alone. The second opinion has lists of its own, to share none of their gaps.
"""

# ruff: noqa: SIM905  (a thousand words are easier to read and to add to without quotes)

MULTIPLIERS = {"hundred": 100, "thousand": 1_000, "million": 10**6, "billion": 10**9, "trillion": 10**12}
"""Words directly behind a number that multiply it."""

NEGATIVE = frozenset({"minus", "negative"})
"""Words directly before a number that negate it; anywhere else they make an answer malformed."""

CURRENCIES = frozenset("USD EUR GBP INR CAD AUD JPY CHF CNY HKD SGD Rs US CA C A AU NZ HK".split())
"""Codes directly before a number or its sign of currency, or behind it."""

DOLLARS = frozenset("US CA C A AU NZ HK".split())
"""Such of them as need a sign of currency."""

STATING = frozenset("is are was were has have had".split())
MODALS = frozenset({"will", "must"})
"""Verbs that another one follows, where they do not ask."""

ASKING = STATING | MODALS
"""Verbs that ask where no subject stands before them, or one directly behind them: "So is it 42"."""

VERBS = STATING | frozenset(
    """
    be equals cost costs total totals make makes made earn earns earned pay pays paid need needs needed get gets got
    sell sells sold buy buys bought spend spends spent save saves saved eat eats ate read reads use uses used give
    gives gave receive receives received collect collects collected take takes took drive drives drove walk walks
    walked run runs ran travel travels traveled bake bakes baked pick picks picked plant plants planted keep keeps
    kept scored weigh weighs weighed find finds found contain contains contained hold holds held produce produces
    produced charge charges charged catch catches caught bring brings brought
    """.split()
)
"""What directly before the number states it."""

RESULTS = frozenset("answer ans result total altogether so therefore thus hence exactly".split())
"""What may stand there instead, where no verb asks."""

OPENING = frozenset("so therefore thus hence altogether exactly and then now still also together in at on for".split())
"""What is no subject, though a sentence may begin with it."""

PRONOUNS = frozenset("he she it they there we you i this that these".split())

SAYING = frozenset(
    """
    the a an his her him them us me their our my its this that these all each every of in for at on per and then now
    still also he she it they there we you i both together must will final correct right x y number amount sum cost
    price profit income salary value change money time distance length width height area perimeter volume speed age
    weight size rate bill fee average mean difference ratio savings discount left remaining new day week month year
    hour minute trip box bag group family class school person garden field room house pool yard team store shop
    student child children people men women friend friends egg cake apple book pencil ticket shirt
    """.split()
)
"""What else may stand in the sentence before the number."""

GIVING = frozenset("takes took take costs cost gives gave pays paid".split())
"""Verbs that a recipient may follow: "It takes Tom 42 minutes"."""

RECIPIENTS = frozenset("him her them us me".split())

BEFORE_PLURALS = frozenset("of the all both his her their our my new remaining each egg cake".split())
"""Words of the sentence behind which a plural is a thing: elsewhere it may be a verb, as in "he watches"."""

MONTHS = frozenset("January February March April May June July August September October November December".split())
"""After `in`, or after another month."""

MODIFIERS = frozenset(
    """
    sq cu
    additional extra other full whole new red blue green yellow white black brown pink purple orange big small large
    little square cubic apple duck tennis toy baby ice different free fresh empty
    """.split()
)
"""What may stand between the number and its unit."""

SQUARES = frozenset({"sq", "cu"})
"""Such of them as may have a full stop."""

MASSES = frozenset(
    """
    beef bread butter candy cereal cheese chicken chocolate cloth coffee corn cotton cream dirt fabric flour food
    fruit gas gasoline glass gold grass hay honey ice juice lemonade meat milk money oil paint paper pasta pizza
    popcorn pork rice rope salt sand silver soda soil soup string sugar tea water wheat wine wire wood wool yarn
    """.split()
)
"""What has no plural: a thing, or what one is made of."""

ABBREVIATIONS = frozenset(
    "kg mg lb lbs oz km cm mm mi ft yd hr hrs min mins sec secs mph kmh kph ml mL gal yr yrs wk wks".split()
)
"""Units of measure as they are abbreviated, but behind no currency."""

POWERED = """
    mm cm m km in ft yd mi s unit units inch inches foot feet yard yards mile miles meter meters metre metres
    centimeter centimeters kilometer kilometers
""".split()
"""Units that may be squared or cubed."""

LETTERS = frozenset("g m h s L l F C".split())
"""Units of a single letter; `m` may be a million, and so a thing behind them makes the answer malformed."""

STATES = frozenset("left altogether together today now needed sold long tall wide deep away".split())
"""What may follow the number and its unit."""

PLACES = frozenset(
    """
    aquarium barn basket bowl building classroom drawer farm farmer field fridge garden home house jar library market
    office park party pond pool room school shop store tank zoo
    """.split()
)

ENDINGS = (
    "is the answer", "is the final answer", "is the correct answer", "is the total", "is the result", "are left",
    "is left", "are needed", "are remaining", "were sold", "were left",
)  # fmt: skip
"""Ends of a sentence that begins with the number."""

UNITS = frozenset(
    """
    dollar cent euro pound rupee yen apple egg cookie day hour minute week month year mile meter metre kilometer
    kilometre centimeter foot feet inch yard acre gallon liter litre cup ounce gram kilogram ton degree percent unit
    item person people child children man men woman women student mouse mice fish sheep deer geese teeth
    kid piece page ticket trip box bag car glass toy ball tree plant flower slice bus Celsius Fahrenheit
    """.split()
)
"""Units in the singular, and such plurals as are not regular."""

THINGS = frozenset(
    """
    accessories acorns acres actors administrators adults airplanes albums alligators amulets animals antelopes
    antlers ants apartments appetizers apples applications aprons aquariums armchairs arms artichokes articles
    artworks asparagus athletes attendees audiobooks aunts avocados awards babies backpacks badges bagels baggies
    bags baguettes bales balloons balls bananas bandages bands barrels barrettes bars baseballs basketballs baskets
    batches bathrooms baths bats batteries beads beakers beans bears beavers bedbugs bedrooms beds bees beetles
    beignets belts benches berries bicycles bikes billboards bills binders biographies birdhouses birds biscuits
    blackbirds blankets blocks blouses blueberries boards boats bollards bolts bones bonnets books bottlecaps
    bottles bouquets bowls boxcars boxes boys bracelets branches breakfasts bricks bridesmaids brochures broomsticks
    brothers brownies bubbles buckets bugs builders buildings bulbs bulls bunches bundles bunnies buns burgers
    burritos buses bushels bushes businesses butterflies buttons buyers cabinets cages cakes calories camels campers
    candies candles canes cannolis cans cantaloupes caps capsules caramels cardinals cards carnations carpenters
    carpets carriages carrots cars cartons cases castles caterpillars cats cavities ceilings centimeters cents
    chairs champions channels chapters characters chargers checks cheerleaders cheesecakes cheetahs chefs cherries
    chests chickens chicks chihuahuas chimichangas chipmunks chips chocolates chores circles cities clarinets class
    classes classmates classrooms cleaners clerks clients clippings clips cloaks clothes clotheslines clovers cloves
    clowns coaches coats cobras cobs coconuts coffees coins collectors colleges colors columns comics computers
    cones contacts containers cookies coolers copies corns cougars coughs counters countries coupons courses cousins
    cows crabs crackers crafts cranberries craters crates crayons creams crickets croissants crops crosswalks
    croutons crows cubs cucumbers cupcakes cups curlers customers cycles dahlias daisies dancers dandelions
    daughters days decks decorations deers degrees deliveries desks desserts devices diapers diaries dimes dinners
    dishes doctors documents dogs dollars dolls dolphins dominoes donations donuts doors doses dots doughnuts
    downloads dragons drawings dreams dresses drinks drivers driveways dromedaries drummers drums dryers ducklings
    ducks dumplings dwarves earrings ears eats eels eggplants eggs elephants elves emails employees emus enemies
    engines entrees envelopes episodes erasers essays euros exams exercises eyes fairies families fans farmhands
    farms feathers feedings females fences ferns fields fights figures figurines files filets fillets fingers
    firefighters fireflies fireworks fishes flags flagstones flamingoes flashlights flavors fleas flies flights
    floors flowers flutes flyers folders followers footballs footprints forks foxes frames friends fries frisbees
    frogs fronds fruits galleries gallons games gates geckos gems gemstones geraniums gerbils gharials gifts
    gigabytes gingerbreads giraffes girls glasses gnomes goals goats graders grades graduates grains grams
    granddaughters grapes grasshoppers groups guests guides guitars gumballs guns guppies haircuts hairs halls
    hamburgers hamsters hands hangers hares hats hawks heads hearts hectares helmets hens hexagons highlighters
    hikes hills hippos hives holes homes honeydews hoodies hoots hops horses horseshoes hospitals hotdogs hours
    households houses humans hushpuppies huskies hyenas iguanas inches individuals inhabitants inpatients insects
    instructions instructors instruments intersections invitations islands items jackets jaguars jars jeans
    jellybeans jerseys jewels joggers jokes jugs juices jumpers kangaroos kernels kettles keyboards keys kids
    kilobytes kilograms kilometers kilos kilowatts kindergartners kitchens kits kittens kiwis knives knots koalas
    ladders ladies ladybugs lambs lamps laps laptops lasagnas lattes lawns layers leaves legos legs lemons lengths
    leopards lessons letters levels lightbulbs lighters lights lilacs lilies limbs limes lines lions listens liters
    lizards llamas loaves loggers lollipops lunches lychees macarons macaroons machines magazines magnets magpies
    males managers mangoes mangos marbles marigolds markers marshmallows masks matchboxes matches matchsticks mats
    meals meatballs medals megabits megabytes melons members messages meters metres microphones miles milkshakes
    milligrams milliliters millimeters millipedes minks minnows minutes mirrors mittens models monitors monkeys
    monsters months motorcycles mountains movies muffins mugs mushrooms musicians nails napkins naps necklaces
    neighbors nephews newspapers nickels nieces nights noodles noses notebooks notes nougats novels nuggets nurses
    nuts objects olives omelets onions oranges orchards orchids orders ounces outfits oysters packages packets packs
    pages pails paintings pallets pamphlets pancakes pandas panels pans pansies pants papayas paperclips papers
    paragraphs parents parks parrots parsecs parsnips participants parts passengers passes pastries patches patients
    patrons paychecks payments peaches peanuts pearls pears pebbles pencils penguins pennies pens peppers permits
    persons pesetas pesos petals pets petunias phones photographs photos pianists pickles picks pictures pieces pies
    pigeons piglets pigs pillows pills pineapples pinecones pines pins pints pitches pixels pizzas planks planters
    plants plates players playlists plums pockets pods poets pointers points poles pomegranates pomelos poodles
    pools popsicles porcupines portions portraits postcards posters posts potatoes pots pouches pounds presents
    pretzels printers prints problems programs puffs pumpkins pumps punches pupils puppies pups pushups puzzles
    pythons quarts questions quiches quilts quizzes rabbits raccoons racers races racquets radishes raisins
    raspberries rats rattlesnakes razors records rectangles redwoods relatives requests residents restaurants
    rhinestones rhinos ribbons riddles riders rides ridges rings robes robins robots rocks rolls roofs roommates
    rooms roosters roses rounds rows rubies ruffles rugs rungs runners rupees sacks salads sales samples sandcastles
    sandwiches saplings sapphires sauces sausages savings scallops scarves schools scissors scoops scouts screens
    screws seagulls seahorses seashells seasons seats seconds sections sectors seedlings seeds segments semesters
    seniors sentences sequences sequins servings sessions sets shares sharks sheets shells shelves shingles shirts
    shoeboxes shoes shoppers shorts shots showers siblings singers sisters sites situps skeins skeletons skirts
    slacks sleeves slices smoothies snacks snails snakes snapdragons sneakers snowballs snowflakes soaps socks sodas
    sofas soldiers songs sonnets sons sparklers spears species spiders spiderwebs spools spoonfuls spoons squads
    squirrels stables stairs stalks stamps stanzas staplers starfishes stars stations statues steaks steps stickers
    sticks stingrays stitches stones stools stoplights stores stories strands strawberries straws streetlights
    streets strings stripes strips strokes students subscribers subscriptions subsections suckers suggestions
    suitcases suits sundaes sunflowers surfers swans sweaters sweatshirts sweets systems tables tablespoons tacks
    tadpoles tails tangerines tanks taps tarantulas tasks tattoos taxis teachers teacups teams teas teaspoons techs
    teddies teenagers televisions tents terriers teslas tests textbooks texts thermoses thorns thumbtacks tickets
    ties tigers tiles tins tires tissues toads toddlers toenails toes tokens tomatoes tonnes tons tools toonies
    toothbrushes toothpicks toppings tops touchdowns tourists towels towers toys tractors trains trays treats trees
    triangles tricycles trikes trips trombones trophies trouts trucks truffles trumpets tubes tubs tulips turkeys
    turtles twigs umbrellas uncles unicorns uniforms units utensils vacations vaccines vampires vans vases
    vegetables vehicles videos viewers views vines violins visitors visits vlogs volunteers voters votes waiters
    walls walnuts washers washes watches watermelons watts weasels websites wedges weeds weekdays weekends weeks
    weights werewolves whales wheels whiskers whistlers whiteboards widgets wigs windows wings wolves wombats words
    workdays workers worksheets worms yards yarns years yogurts yolks zebras zombies
    """.split()
)
"""Plurals of what grade-school problems count, as the questions of GSM8K use them. What is also a number (`dozens`), a
part (`halves`) or above all a verb (`equals`) is left out."""

SINGULARS = frozenset(
    thing.removesuffix("ies") + "y" if thing.endswith("ies")
    else thing.removesuffix("es" if thing.endswith(("ches", "shes", "sses", "xes")) else "s")
    for thing in THINGS
)  # fmt: skip
"""Singulars of the things, behind "per" or "a"; of the irregular ones what is none, which harms nothing."""

NAMES = frozenset(
    """
    Aaron Abel Abigail Adam Adele Adrien Agnes Ahmed Aira Aisha Alan Albert Alex Alexa Alexander Alexis Ali Alice
    Alicia Alison Allan Allison Allyn Alma Alvin Alyssa Amalie Amanda Amara Amelia Amy Ana Andrea Andrew Andy Angela
    Angie Angus Anie Ann Anna Anne Annie Anthony Antonella Antonia Antonio Anya Archie Arman Arnold Arthur Artie
    Asaf Ashley Atticus Audrey Austin Ava Bailey Barney Barry Bea Beatrice Beatrix Becky Bella Ben Benjamin Bennett
    Benny Bernie Bert Beth Bethany Betsy Betty Billie Billy Blake Bob Bonnie Boris Brad Braden Brady Brandon Brenda
    Brendan Bret Brian Brianna Briar Bridget Brittany Brooke Bruce Bruno Bryan Buffy Caleb Calvin Cameron Candice
    Cara Carl Carla Carlos Carly Carmen Carol Caroline Carolyn Carrie Carson Carter Cary Casey Cassidy Catherine
    Cathy Celine Chad Charles Charlie Charlotte Cheryl Chloe Chris Christian Christina Christine Christopher Cindy
    Claire Clara Clayton Clyde Cody Cole Colin Colleen Collin Conner Connie Connor Cooper Corey Cory Craig Cruz
    Cynthia Cyrus Dale Damien Dan Dana Daniel Danielle Danny Dante Darcy Daria Darrel Darren Darryl Darwin Dave
    David Dawn Denise Dennis Derek Derrick Devin Dexter Diana Diane Diego Dolly Donald Donna Donny Dora Doris
    Dorothy Dulce Dylan Ed Edward Eli Elijah Elise Eliza Elizabeth Ella Ellen Ellie Elliot Ellis Elodie Elsa Elvis
    Emil Emily Emma Emmanuel Emmy Ephraim Eric Erica Erick Erika Erin Ernie Esther Ethan Eugene Evan Fabian Fatima
    Felix Finley Fiona Frances Francie Frank Frankie Fred Freddy Gabby Gabriel Gage Gary Gavin Genevieve George
    Gerald Gerry Gigi Gilbert Gina Giselle Gloria Grace Grayson Greg Greta Gretchen Griffin Haley Hana Hania Hanna
    Hannah Hans Harper Harriet Harris Harry Hazel Hector Helen Henry Hillary Holly Hugo Hurley Ian Idris Ingrid
    Isabel Isabella Isabelle Isaias Ivan Ivanna Jackie Jackson Jaco Jacob Jamal James Jamie Jan Jana Jane Janet
    Janice Jared Jason Jasper Javier Jay Jayden Jaylen Jed Jeff Jemma Jen Jenna Jennifer Jenny Jensen Jeremy Jerome
    Jerry Jess Jessa Jesse Jessica Jessie Jessy Jewell Jill Jim Joan Joanna Joel Joey Johanna John Johnny Jon Jonah
    Jonas Jonathan Jordan Jordyn Jorge Jose Joseph Josh Joshua Josie José Joy Juan Juanita Jude Judy Julia Julian
    Julie Julieta Julio Justin Kannon Karen Kassidy Kate Katherine Kathleen Katie Katrina Katy Kayla Kaylee Keanu
    Kekai Kelly Kelsey Ken Kendra Kenji Kenneth Kenny Kevin Kim Kimiko Kira Kona Kris Kristen Kristin Kwame Kylar
    Kyle Kylie Lana Lance Lara Laran Larry Laura Laurel Lauren Layla Leah Lee Leila Lena Leo Leon Levi Liam Lilith
    Lillian Linda Lindsay Lindsey Lisa Liz Liza Lizzie Lloyd Logan Lois Lola Lorelei Lori Lou Louie Louis Louise
    Lucas Lucca Lucille Lucy Ludo Luke Lulu Luna Lydia Lyle Mabel Macy Maddie Maddy Madeline Madison Maggie Malcolm
    Mandy Manny Mara Marcel Marcia Marco Marcus Marcy Margaret Maria Marie Mario Marion Marissa Marius Markus Marla
    Marlon Marnie Marta Martha Martin Marvin Mary Mateo Matias Matilda Matt Matthew Maurice Maya Megan Mel Melanie
    Melissa Merill Mia Micah Michael Michelle Michiko Mickey Miguel Miley Millie Milly Milo Miranda Miriam Mitch
    Mitchell Molly Monica Moses Nancy Naomi Natalia Natalie Natasha Nate Nathan Ned Neil Nellie Nelly Nicholas Nick
    Nicole Nigel Nina Noah Nora Olaf Olga Oliver Olivia Omar Ophelia Oscar Otto Owen Pablo Paige Pam Parker Pat
    Patricia Patrick Paul Paula Pauline Pedro Peggy Perry Pete Peter Phil Philip Phillip Phoebe Piper Polly Priya
    Quinn Rachel Ralph Randy Raphael Ravi Rayman Raymond Rebecca Reese Reggie Remy Rene Rhonda Richard Rick Rickey
    Ricky Riley Rita Rob Robbie Robert Rodney Roger Ron Rory Rosa Rosie Roy Rudy Rupert Ruth Ryan Sabrina Sally
    Samanta Samantha Sammy Samson Samuel Sandra Sandy Sara Sarah Sasha Scott Sean Sebastian Selena Sergio Seth Shane
    Shara Sharon Shawna Sheila Shelby Shelly Sherry Sid Sidney Sierra Simon Skylar Sofia Sofie Solomon Sophia Sophie
    Stacy Stan Stella Stephanie Stephen Steve Steven Stu Sue Susan Susie Suzy Sydney Tabitha Talia Tamara Tammy
    Tanya Tara Tariq Tasha Taylor Ted Teresa Terry Tessa Theo Theresa Thomas Tiffany Tim Timothy Tina Tobias Toby
    Todd Tom Tommy Tonya Tory Tracy Travis Trent Trevor Trey Tyler Tyson Ursula Val Vanessa Verna Veronica Victor
    Victoria Vincent Violet Walter Wanda Wayne Wendi Wendy Weng Whitney Wilfred William Willy Wilson Winston Xavier
    Yasmin Yuki Yuri Zach Zachary Zack Zain Zane Zoe
    """.split()
)
"""Given names of the people in such problems. What is also another word or a place is left out."""
