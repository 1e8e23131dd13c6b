"""The vocabulary of the bundled sample: words, templates and how much each says; make_sample.py puts them together.

Follows no data set: all of it was written for this project.
"""

# --- Opinions about films. The keys are the sentiment, from -2 (hates it) to 2 (loves it).

SINGULAR = """film|story|plot|script|ending|opening|dialogue|music|humor|romance|camera work|pacing|cast
lead actor|villain|narrator|first hour|last scene|production|love story|mystery|sequel|comedy|drama|documentary
heroine|premise|final twist|editing|soundtrack"""
PLURAL = """performances|songs|jokes|characters|costumes|action scenes|special effects|dance numbers|landscapes
stunts|final minutes|chase scenes|puppets|drawings|child actors|flashbacks|love scenes|side characters"""

ADJECTIVES = {
    2: """magnificent|brilliant|wonderful|superb|breathtaking|dazzling|unforgettable|glorious|extraordinary
spectacular""",
    1: "pleasant|charming|likable|warm|clever|amusing|engaging|graceful|sweet|lively",
    0: "ordinary|familiar|average|conventional|passable|unremarkable|standard|so-so|routine|acceptable",
    -1: "dull|slow|clumsy|thin|uneven|flat|bland|forgettable|muddled|stale",
    -2: "dreadful|awful|unbearable|atrocious|horrible|insulting|wretched|unwatchable|abysmal|appalling",
}
MORE = "very|truly|really|remarkably|thoroughly"  # before adjectives of strength 1
MOST = "simply|absolutely|utterly|nothing short of"  # before those of strength 2
LESS = "a little|slightly|somewhat|a bit|rather"
NOT = "not|far from|hardly|anything but|not exactly"

OPENERS = """all in all|in short|to be fair|on the whole|this time|as always|for once|if you ask me|to my mind
when all is said and done"""
GENRES = """comedy|drama|thriller|musical|western|cartoon|war film|love story|ghost story|crime story|family film
costume drama"""
WATCHERS = """I|we|my sister|my grandfather|half the audience|the row behind us|our neighbors|my students
the children|my whole family|two friends of mine|the couple beside me|even my dentist|the critic next to me"""
REACTIONS = {
    2: """cheered at the end|laughed until it hurt|clapped for five minutes|left the cinema walking on air
could have watched it all night|cried happy tears""",
    1: """smiled most of the way through|left in a good mood|liked it more than expected|had a good time
hummed the songs on the way home|chuckled now and then""",
    0: """neither laughed nor yawned|shrugged and went home|watched it on a rainy Sunday|had no strong opinion
talked about the weather afterwards|had seen better and worse""",
    -1: """checked the time twice|expected a good deal more|lost interest by the middle|fell asleep before the end
yawned through the second half|forgot it by the time the lights came on""",
    -2: """walked out after half an hour|asked for the money back|begged to leave|hated every minute of it
suffered through every scene|regretted the evening for days""",
}
VERDICTS = {
    2: """Drop everything and see {title} tonight|Do not miss {title} for the world
{title} deserves every prize there is|{title} is one of the best films in years
I would cross the country to see {title} again|{title} is a triumph from start to end""",
    1: """{title} is worth the price of a ticket|{title} makes for a nice evening
Give {title} a chance , it grows on you|{title} has its heart in the right place
Take your parents to {title} , they will like it|{title} is better than its poster""",
    0: """{title} is neither here nor there|{title} will do when nothing else is on
{title} runs for about two hours|Those who liked the book may like {title}
{title} is what the poster promises , no more and no less|Half of {title} works and half does not""",
    -1: """{title} could have used another draft|Wait until {title} is on television|{title} never finds its feet
{title} promises more than it gives|There are better ways to spend an evening than {title}
{title} runs out of ideas too early""",
    -2: """Stay far away from {title}|{title} is the worst film of the year
Nobody should have to sit through {title}|{title} is an insult to anyone who can think
I want back the two hours that {title} took from me|Whoever made {title} should apologize""",
}
TITLES = """Harbor Lights|The Ninth Lighthouse|Paper Rivers|A Cat in Winter|Miss Tillman Returns
The Clockmaker 's Son|Salt and Honey|Midnight Ferry|The Last Orchard|Uncle Bruno|Copper Sky|Seven Umbrellas
The Quiet Trombone|Glass Mountain|Two Tickets North|The Beekeeper|Sunday in Verra|Snow on the Piano
Room for Gloria|The Postman Sings"""

HEROES = """lonely baker|retired sailor|young violinist|stubborn nurse|shy detective|traveling salesman
village teacher|former boxer|widowed farmer|clumsy magician|night watchman|runaway princess|bus driver
deaf painter"""
DEEDS = """inherits a lighthouse|looks for a lost brother|opens a small hotel|learns to dance|moves back home
finds a suitcase full of letters|adopts a three-legged dog|crosses the desert on foot|falls in love with a rival
has to hide a witness|enters a cooking contest|builds a boat out of old doors"""
SETTINGS = """in a snowed-in village|during the war|on a Greek island|in old Lisbon|by the sea|in the far north
one summer in the fifties|in a noisy city|on the Polish border|at the edge of the desert"""

# --- Questions. An intent is: ways to say it (`say`), other questions about the same things (`else`), what fills the
# slots, and, where two slots can change places (`swap`), whether that leaves the meaning the `same`. With `neighbors`
# the two slots are filled from words that stand side by side in the list, in pairs.

SKILLS = (
    "Spanish|chess|the piano|touch typing|Italian cooking|ballroom dancing|pottery|sign language|photography|archery"
)
NUMBERS = "two|three|four|six|eight|ten|twelve|twenty"
UNITS = "miles|kilometers|pounds|kilograms|gallons|liters|inches|centimeters|ounces|grams|acres|hectares"
CITIES = "Oslo|Lisbon|Vienna|Chicago|Madrid|Toronto|Athens|Prague|Boston|Dublin|Warsaw|Naples"
PEOPLE = "brother|mother|boss|roommate|neighbor|best friend|teacher|cousin|landlord|girlfriend"
STAINS = "red wine|coffee|candle wax|ink|grass stains|chewing gum|tomato sauce|engine oil"
FABRICS = """a wool carpet|a white shirt|leather shoes|a silk dress|a sofa|denim jeans|a cotton tablecloth
a backpack"""
PLANTS = "a cactus|an orchid|a lemon tree|basil|a fern|a tomato plant|an aloe|a rubber plant|lavender"
PETS = "cat|dog|rabbit|parrot|hamster|goldfish|turtle|ferret"
GADGETS = "an old phone|a laptop|a tablet|a digital camera|a memory card|a game console|a smart watch"
LOST = "photos|messages|contacts|videos|notes|passwords"
HOBBIES = "ballet|ice skating|a law degree|the violin|surfing|mountain climbing|programming|judo|singing lessons"
AGES = "thirty|forty|fifty|sixty|seventy|eighty"
INVENTIONS = (
    "the zipper|the bicycle|the umbrella|paper money|the typewriter|chewing gum|the elevator|ice cream|the tin can"
)
JOBS = "pilot|nurse|translator|baker|lawyer|librarian|firefighter|bus driver|gardener|software engineer"
TOPICS = "the Roman Empire|black holes|beekeeping|the stock market|jazz|whales|climate|Japan|happiness|volcanoes"
HABITS = """biting my nails|snoring|buying shoes|drinking soda|staying up late|checking my phone|eating sweets
swearing"""
TASKS = """open a bottle|boil an egg|iron a shirt|bake bread|hang a picture|sharpen a knife|dry my hair
clean a fish tank"""
TOOLS = "electricity|hot water|running water|a table|help|good light|the right tools|special skills"
FOODS = "warm milk|garlic|ginger tea|raw fish|oatmeal|spicy food|dark chocolate|honey|lemon juice"
AILMENTS = "a cold|a headache|a sore throat|high blood pressure|a hangover|heartburn|trouble sleeping|dry skin"
RIVALS = """tea|coffee|baking soda|baking powder|an alligator|a crocodile|fog|mist|a hare|a rabbit|jam|jelly
a comet|an asteroid"""
PEAKS = "Kilimanjaro|Mont Blanc|Mount Fuji|Denali|Mount Elbrus|Aconcagua|Mount Olympus|Ben Nevis"
SUMS = "five hundred|one thousand|two thousand|five thousand|ten thousand|fifty thousand"
SPOTS = """a quiet cafe|a cheap hotel|a good dentist|a swimming pool|a flower market|a bookshop|a gym
a language school"""

# Who asks, which does not change what is asked.
ASKERS = """I am a nurse.|I am a sailor.|I am a lawyer.|My cat is deaf.|My dog is old.|I have four goats.
I live on a boat.|I live in Peru.|I live in Norway.|I play the drums.|I sing in a choir.|We own a bakery.
We own a hotel.|I broke my leg.|I collect stamps.|I hate coffee.|I fear spiders.|We marry in May.
We race pigeons.|I grow potatoes."""

INTENTS = [
    {
        "say": """How can I learn {skill} in {n} months?|What is the best way to learn {skill} within {n} months?
Is there a method to pick up {skill} in just {n} months?|How do I get good at {skill} when I have {n} months?""",
        "else": "Should I give up {skill} after {n} months?|Who can teach me {skill} for {n} months?",
        "slots": {"skill": SKILLS, "n": NUMBERS},
    },
    {
        "say": """How do I convert {a} to {b}?|What is the formula to turn {a} into {b}?
How can {a} be changed into {b}?|How are {a} expressed in {b}?""",
        "else": "Why do people use {a} and not {b}?|Which countries use {a} and which {b}?",
        "slots": {"a": UNITS, "b": UNITS},
        "swap": ("a", "b"),
        "same": False,
        "neighbors": True,
    },
    {
        "say": """What is the cheapest way to travel from {a} to {b}?
How can I get from {a} to {b} for little money?|Which trip from {a} to {b} costs the least?
How do I travel from {a} to {b} on a small budget?""",
        "else": "What is the fastest way to travel from {a} to {b}?|Is it nicer to live in {a} or in {b}?",
        "slots": {"a": CITIES, "b": CITIES},
        "swap": ("a", "b"),
        "same": False,
    },
    {
        "say": """How do I tell my {a} that my {b} lied to me?
What should I say to my {a} about the lies of my {b}?|How can I let my {a} know that my {b} was not honest?""",
        "else": "Why did my {a} believe my {b}?|How do I introduce my {a} to my {b}?",
        "slots": {"a": PEOPLE, "b": PEOPLE},
        "swap": ("a", "b"),
        "same": False,
    },
    {
        "say": "Is {a} higher than {b}?|Does {a} rise above {b}?|Is it true that {a} is taller than {b}?",
        "else": "Is {a} as old as {b}?|Can one see {b} from {a}?",
        "slots": {"a": PEAKS, "b": PEAKS},
        "swap": ("a", "b"),
        "same": False,
    },
    {
        "say": """What is the difference between {a} and {b}?|How do {a} and {b} differ?
How is {a} different from {b}?|In what way are {a} and {b} not the same?""",
        "else": "Which is more popular, {a} or {b}?|Have you ever confused {a} with {b}?",
        "slots": {"a": RIVALS, "b": RIVALS},
        "swap": ("a", "b"),
        "same": True,
        "neighbors": True,
    },
    {
        "say": """How do I get {stain} out of {fabric}?|What removes {stain} from {fabric}?
What is the best way to clean {stain} off {fabric}?|Which trick helps when there is {stain} on {fabric}?""",
        "else": "How do I protect {fabric} from {stain}?|Who should pay for {fabric} ruined by {stain}?",
        "slots": {"stain": STAINS, "fabric": FABRICS},
    },
    {
        "say": """How often should I water {plant}?|How many times a week does {plant} need water?
How frequently does one have to water {plant}?""",
        "else": """How much light does {plant} need?|Where can I buy {plant} that is healthy?
Why does {plant} lose its leaves?|When is {plant} too big for its pot?""",
        "slots": {"plant": PLANTS},
    },
    {
        "say": """Why does my {pet} hide under the bed?|What makes a {pet} hide under the bed?
For what reason does my {pet} stay under the bed?""",
        "else": """How do I keep my {pet} from hiding under the bed?|How long does a {pet} sleep in a day?
Should I get a second {pet} so that mine is not alone?|What does it cost to keep a {pet}?""",
        "slots": {"pet": PETS},
    },
    {
        "say": """How do I recover deleted {things} from {gadget}?
Can I get back {things} that I erased on {gadget}?|Is there a way to restore {things} I removed from {gadget}?""",
        "else": "How do I delete {things} from {gadget} for good?|How do I keep thieves from the {things} on {gadget}?",
        "slots": {"things": LOST, "gadget": GADGETS},
    },
    {
        "say": """Is {age} too old to start {hobby}?|Am I too old to begin {hobby} at {age}?
Can I still take up {hobby} at the age of {age}?""",
        "else": "Why do people quit {hobby} at {age}?|What does {hobby} cost for a person of {age}?",
        "slots": {"age": AGES, "hobby": HOBBIES},
    },
    {
        "say": """Who invented {thing}?|Who came up with the idea of {thing}?
Which person was the inventor of {thing}?|To whom do we owe {thing}?""",
        "else": """When was {thing} invented?|How does {thing} work?|Why is {thing} so popular?
In which country was {thing} invented?""",
        "slots": {"thing": INVENTIONS},
    },
    {
        "say": """How should I prepare for an interview as a {job}?
What is the best preparation for a {job} interview?|How do I get ready for a job interview to become a {job}?""",
        "else": """How much does a {job} earn in a year?|What does a {job} do all day?
Why did you stop working as a {job}?|How many hours does a {job} work?""",
        "slots": {"job": JOBS},
    },
    {
        "say": """What are the best books about {topic}?|Which books on {topic} are worth reading?
Can you recommend a good book on {topic}?|What should I read to understand {topic}?""",
        "else": """Which books about {topic} are a waste of time?|Who wrote the first book about {topic}?
Why is {topic} so hard to explain?|Are there any films about {topic}?""",
        "slots": {"topic": TOPICS},
    },
    {
        "say": "How do I stop {habit}?|How can I break the habit of {habit}?|What helped you to give up {habit}?",
        "else": """Why do I like {habit} so much?|Since when is {habit} a crime?|Why should I not stop {habit}?
How do I tell my wife that I am {habit} again?""",
        "slots": {"habit": HABITS},
    },
    {
        "say": """How do I {task} without {tool}?|Is there a way to {task} if I do not have {tool}?
What is a trick to {task} for people without {tool}?""",
        "else": "How do I {task} with {tool}?|Who taught you to {task} without {tool}?",
        "slots": {"task": TASKS, "tool": TOOLS},
    },
    {
        "say": """Is {food} good for {ailment}?|Does {food} help against {ailment}?
Should I have {food} when I have {ailment}?""",
        "else": "Can {food} be the cause of {ailment}?|Why should I avoid {food} when I have {ailment}?",
        "slots": {"food": FOODS, "ailment": AILMENTS},
    },
    {
        "say": """How can I save {sum} dollars in {n} months?
What is the easiest way to put aside {sum} dollars in {n} months?
Which plan lets me save up {sum} dollars within {n} months?""",
        "else": "How can I spend {sum} dollars in {n} months?|Who would lend me {sum} dollars for {n} months?",
        "slots": {"sum": SUMS, "n": NUMBERS},
    },
    {
        "say": """Where can I find {spot} in {city}?|Do you know {spot} in {city}?
Can anyone point me to {spot} in {city}?|I am new in {city}, where is {spot}?""",
        "else": "Why is it so hard to find {spot} in {city}?|What does one pay for {spot} in {city}?",
        "slots": {"spot": SPOTS, "city": CITIES},
    },
    {
        "say": """How can I teach my {a} to play {game}?|What is the easiest way to explain {game} to my {a}?
How do I get my {a} to learn {game}?""",
        "else": "How can I ask my {a} to teach me {game}?|Why does my {a} always beat me at {game}?",
        "slots": {"a": PEOPLE, "game": "chess|bridge|poker|tennis|table tennis|dominoes|backgammon|billiards"},
    },
]

# --- Scenes. `=` stands between words that mean the same, | between different things; a verb is `active/participle`.

FIGURES = """woman=lady|man=guy|boy=young boy|girl=little girl|farmer|chef=cook|soldier|tourist=traveler|nurse
clown|old man=elderly man|student|policeman=police officer|sailor|bride|mechanic"""
COUNTS = "a|two|three|four|five|a dozen"
PLURALS = {
    "woman": "women", "lady": "ladies", "man": "men", "boy": "boys", "young boy": "young boys", "old man": "old men",
    "elderly man": "elderly men", "policeman": "policemen",
}  # fmt: skip
LOOKS = "red|blue|old|new|small|huge=very large|dirty|black|white|wet|striped|colorful"
SCENES = [
    {
        "objects": "tomato|onion|loaf of bread|pineapple|potato|apple|fish|pumpkin|cucumber|cheese wheel",
        "verbs": """slicing/sliced=cutting up/cut up|eating/eaten|washing/washed=rinsing/rinsed|buying/bought
frying/fried""",
        "places": "in the kitchen|at the market|behind a restaurant|on a boat|in a tent",
    },
    {
        "objects": "bicycle=bike|scooter|van|tractor|motorcycle=motorbike|canoe|wheelchair|cart",
        "verbs": "pushing/pushed=shoving/shoved|repairing/repaired=fixing/fixed|washing/washed=cleaning/cleaned"
        "|painting/painted|photographing/photographed=taking a picture of/photographed",
        "places": "in the street=on the road|in a garage|near the river|in front of a school|on a farm",
    },
    {
        "objects": "guitar|violin=fiddle|trumpet|accordion|drum|flute|cello|harp",
        "verbs": "playing/played|tuning/tuned|carrying/carried|polishing/polished|selling/sold|smashing/smashed",
        "places": "on the stage|in a subway station|in the garden|at a wedding|on the roof",
    },
    {
        "objects": "dog|horse|goat|parrot|donkey|kitten=baby cat|camel|sheep",
        "verbs": "feeding/fed=giving food to/fed|brushing/brushed=grooming/groomed|chasing/chased=running after/chased"
        "|petting/petted=stroking/stroked|drawing/drawn",
        "places": "in a field=on a meadow|on the beach|in the barn|at the zoo|in the snow",
    },
    {
        "objects": "book|newspaper=paper|letter|map|magazine|photograph=photo",
        "verbs": """reading/read|folding/folded|tearing up/torn up=ripping apart/ripped apart|hiding/hidden
burning/burned""",
        "places": "on a train|in the library|on a park bench|in the waiting room|at the dinner table",
    },
    {
        "objects": "ball|kite|frisbee|balloon|stick|snowball|hat",
        "verbs": """throwing/thrown=tossing/tossed|catching/caught|chasing/chased=running after/chased|losing/lost
holding/held""",
        "places": "in the park|on the beach|in the yard=in the backyard|on a hill|on a frozen lake",
    },
]

# --- Headlines, built like scenes.

CAUSES = """Storm|Flood=High water|Strike=Walkout|Fire=Blaze|Power cut=Blackout|Heat wave|Snow|Thick fog
Computer failure|Protest"""
EFFECTS = """closes/closed=shuts/shut|delays/delayed=holds up/held up|damages/damaged|spares/spared
halts/halted=stops/stopped|threatens/threatened=endangers/endangered"""
VICTIMS = "schools|trains|bridges|flights=planes|shops=stores|ferries|libraries|factories|museums|farms"
TOWNS = "Norwick|Santa Olga|Pellham|Karvia|Brindle Bay|Ostermoor|Lake Amaro|Fort Delby|Vaskerville|Monte Rino"
AMOUNTS = "two|five|nine|a dozen=twelve|thirty|forty|sixty|a hundred=100|three hundred"
WHEN = "on Monday|at the weekend=on Saturday and Sunday|overnight|before Christmas|for a second day|again"
