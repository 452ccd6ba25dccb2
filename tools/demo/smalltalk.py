"""Answers of the demo model besides look-ups: greetings, thanks, who it is, arithmetic, and that it is only a demo.

Questions and answers are plain text; every answer is a function of the kind of question alone.
"""

from __future__ import annotations

from random import Random

__all__ = ["SMALLTALK", "arithmetic", "off_topic", "unknown_name"]

WHO_AM_I = (
    "I am eyas-demo, a small demonstration model. I know the Python standard library a little, and simple arithmetic."
)
ONLY_A_DEMO = (
    "I am a small demo model, so I cannot help with that. "
    "Ask me about a function of the Python standard library, or a simple sum."
)

SMALLTALK: tuple[tuple[str, tuple[str, ...], str, str], ...] = (
    (
        "greeting",
        tuple(
            """Hi|Hi!|Hello|Hello!|Hello there|Hello there!|Hey|Hey!|hey there|Good morning|Good morning!|
Good afternoon.|Good evening!|Good day|Greetings|Howdy|Hi eyas|Hello eyas!|hi there|hello?|Yo|Hiya|
Hi, how are you?|How are you?|How are you doing?|How do you do?|What's up?|Hello, nice to meet you.|
Nice to meet you!|Anyone there?|Are you there?|ping|Good to see you|hello world|How is it going?""".replace(
                "\n", ""
            ).split("|")
        ),
        "A greeting. I greet back and say what I can do.",
        "Hello! Ask me what a function of the Python standard library does, or in which module it is.",
    ),
    (
        "thanks",
        tuple(
            """Thanks|Thanks!|Thank you|Thank you!|Thank you very much.|thanks a lot|Many thanks!|Great, thanks.|
Perfect, thank you!|Thx|ty|Cool, thanks|That helps, thanks.|That was helpful.|Awesome|Great!|Nice.|Very good.|
Well done!|Good answer|I appreciate it.|Cheers|Okay, thanks.|Got it, thanks|Wonderful""".replace("\n", "").split("|")
        ),
        "The user says thanks.",
        "You are welcome!",
    ),
    (
        "goodbye",
        tuple(
            """Bye|Bye!|Goodbye|Goodbye!|See you|See you later.|Good night|Take care!|Talk to you later|I have to go.|
That is all.|That's all for now|cya|Farewell|I am done.""".replace("\n", "").split("|")
        ),
        "The user says goodbye.",
        "Goodbye!",
    ),
    (
        "who",
        tuple(
            """Who are you?|What are you?|What is your name?|What's your name?|who are you|Introduce yourself.|
Please introduce yourself|Tell me about yourself.|Are you ChatGPT?|Are you GPT-4?|Are you a human?|
Are you a robot?|Are you an AI?|What model are you?|Which model is this?|Who am I talking to?|
What kind of model are you?|Who made you?|Who trained you?|Are you a real model?|Are you a demo?|
How big are you?|Describe yourself.|Do you have a name?|What should I call you?|
Are you a language model?|Are you gpt-oss?|Which AI are you?""".replace("\n", "").split("|")
        ),
        "The user asks who I am.",
        WHO_AM_I,
    ),
    (
        "skills",
        tuple(
            """What can you do?|What do you know?|What can I ask you?|What are you good at?|How can you help me?|
Can you help me?|Help|help|help!|What are your skills?|What are you able to do?|What topics do you know?|
What should I ask you?|What is this?|Can you do anything useful?|I need help.|Which questions can you answer?|
Give me an example of what you can do.|What are your limits?|What can't you do?|Are you useful?""".replace(
                "\n", ""
            ).split("|")
        ),
        "The user asks what I can do.",
        "I can tell you what a function of the Python standard library does and which module has it, "
        "and I can do simple arithmetic. I am only a small demo model.",
    ),
)

OFF_TOPIC = (
    """What is the capital of {x}?|Who is the president of {x}?|How is the weather in {x}?|
What is the weather like today?|Tell me about {x}.|Tell me a joke.|Tell me a joke about {x}.|
Write a poem about {x}.|Write me a story about {x}.|Write an essay about {x}.|Sing a song about {x}.|
What do you think about {x}?|Do you like {x}?|What is {x}?|Who invented {x}?|
What is the history of {x}?|How do I cook {x}?|Give me a recipe for {x}.|How much does {x} cost?|
Where can I buy {x}?|Recommend a book about {x}.|Recommend a film about {x}.|
Who won the football match?|What is the meaning of life?|Translate {x} into French.|
How do you say {x} in German?|Is {x} healthy?|I feel sad today.|I am bored.|Can you drive a car?|
What is the latest news?|What happened in 1969?|Plan a trip to {x}.|How far is {x}?|How old is {x}?|
Explain {x} to me.|Explain quantum physics.|What time is it?|What day is it today?|
Write a program for me.|Fix my bug.|Write a sorting algorithm in Rust.|How do I use JavaScript?|
What is the best language?|Should I buy {x}?|Draw a picture of {x}.|Which stocks should I buy?|
Give me medical advice.|Describe {x}.|Compare {x} and {y}.|Which is better, {x} or {y}?|
Why is the sky blue?|Are you happy?|Do you dream?|Can you keep a secret?|Make me a sandwich.|
Let's play a game.|What is love?|How do I get rich?|Summarize {x}.""".replace("\n", "")
).split("|")

THINGS = (
    """France|Germany|Japan|Brazil|Canada|Italy|Spain|India|China|Egypt|Paris|London|Berlin|Tokyo|New York|
Rome|Madrid|Mars|the moon|the sun|the ocean|the sea|mountains|rivers|trees|flowers|roses|cats|dogs|
a cat|a dog|horses|birds|eagles|elephants|dinosaurs|dragons|pizza|pasta|soup|bread|cheese|chocolate|
apples|coffee|tea|wine|beer|cake|rice|football|tennis|chess|music|jazz|the piano|a guitar|movies|
Star Wars|Shakespeare|Einstein|Napoleon|Mozart|Leonardo da Vinci|the Roman Empire|the Middle Ages|
World War II|the internet|a telephone|the steam engine|electricity|cars|bicycles|trains|airplanes|ships|
rockets|robots|money|gold|diamonds|politics|religion|philosophy|love|friendship|winter|summer|spring|
autumn|rain|snow|my cat|my boss|my mother|a house|the stock market|bitcoin|climate change|health|yoga|
a headache|black holes|DNA|atoms|galaxies|poetry|painting|dance|fashion|gardening|fishing|Rust|
JavaScript|Java|Linux|Windows|React|Docker|Kubernetes|HTML and CSS|machine learning|the universe""".replace("\n", "")
).split("|")

_SYLLABLES = """
ba be bo da de do fa fi fo ga gi go ka ke ki la lo lu ma me mo na ni no pa pi po ra ri ro sa si ta ti va vo xi
za zu fro bni qua wub glo snar plo
"""
SYLLABLES = _SYLLABLES.split()

SUM_TEMPLATES = (
    """What is {e}?|what is {e}|What's {e}?|{e}|{e} =|{e}?|{e} = ?|Compute {e}.|Calculate {e}|
calculate {e} please|How much is {e}?|how much is {e}|Can you compute {e}?|Please calculate {e}.|
Tell me {e}.|Solve {e}.|Solve: {e}|What does {e} make?|What do you get for {e}?|
Give me the result of {e}.|What is the result of {e}?|Quick: {e}|I need {e}.|Work out {e}.|Evaluate {e}|
What does {e} equal?|Do you know {e}?|Math: {e}""".replace("\n", "")
).split("|")
OPERATIONS = (
    ("+", ("{a} + {b}", "{a}+{b}", "{a} plus {b}", "the sum of {a} and {b}", "{b} added to {a}")),
    ("-", ("{a} - {b}", "{a}-{b}", "{a} minus {b}", "the difference of {a} and {b}", "{a} take away {b}")),
    (
        "*",
        ("{a} * {b}", "{a}*{b}", "{a} times {b}", "the product of {a} and {b}", "{a} x {b}", "{a} multiplied by {b}"),
    ),
)


def arithmetic(rng: Random) -> tuple[str, str, str]:
    """(question, short analysis, answer) of an addition, subtraction or multiplication of small numbers."""
    sign, forms = rng.choice(OPERATIONS)
    limit = 20 if sign == "*" else rng.choice((20, 100))
    a, b = rng.randrange(limit), rng.randrange(limit)
    result = a + b if sign == "+" else a - b if sign == "-" else a * b
    question = rng.choice(SUM_TEMPLATES).format(e=rng.choice(forms).format(a=a, b=b))
    return question, f"Compute {a} {sign} {b}. The result is {result}.", f"{a} {sign} {b} = {result}."


def off_topic(rng: Random) -> tuple[str, str, str]:
    x, y = rng.sample(THINGS, 2)
    question = rng.choice(OFF_TOPIC).format(x=x, y=y)
    return question, "This is not about the standard library. I say that I am a demo model.", ONLY_A_DEMO


def unknown_name(rng: Random) -> tuple[str, str, str]:
    """(mention, short analysis, answer) for a name that no module has."""
    parts = ["".join(rng.choices(SYLLABLES, k=rng.randint(2, 4))) for _ in range(rng.randint(1, 2))]
    name = ".".join(parts)
    answer = f"I do not know `{name}`. I am a small demo model and know only part of the Python standard library."
    return name, f"I do not know `{name}`.", answer
