"""Templates of user messages: questions about a name, follow-ups, small talk, arithmetic and everything else.

`{m}` stands for a mention of the name, `{d}` for a description of what it does. Only text; `chats.py` fills it in.
"""

from __future__ import annotations

__all__: list[str] = []

ABOUT = """What does {m} do?
What is {m}?
What is {m} for?
What's {m} good for?
What is the purpose of {m}?
What can {m} be used for?
What would I use {m} for?
What happens when I call {m}?
What do I get from {m}?
What exactly does {m} do in Python?
What does Python's {m} do?
What is meant by {m} in Python?
What's the deal with {m}?
What's {m} supposed to do?
Explain {m}.
Explain {m} to me.
Explain what {m} does.
Can you explain {m}?
Could you explain what {m} is for?
Please explain {m} briefly.
Give me a short explanation of {m}.
Give me a one-line summary of {m}.
Give a quick description of {m}.
Describe {m}.
Describe what {m} does in a sentence.
Tell me about {m}.
Tell me what {m} does.
Tell me which module has {m} and what it does.
Do you know {m}?
Do you know what {m} does?
Have you heard of {m}?
I need help with {m}.
Help me understand {m}.
I don't understand {m}.
I do not know what {m} does, can you help?
I saw {m} in some code. What is it?
I came across {m}, what does it do?
Someone used {m} in a code review. What does it do?
My colleague keeps using {m}. Why?
I am reading code that calls {m}. What is happening there?
I found {m} in a script and wonder what it does.
I want to learn about {m}.
I'd like to know what {m} is for.
I was wondering about {m}.
I forgot what {m} does.
Remind me what {m} does.
Refresh my memory on {m}.
How does {m} work?
How would you describe {m}?
How do I use {m}?
When should I use {m}?
When would I reach for {m}?
Why would I use {m}?
Why would anyone call {m}?
Is {m} useful?
Is there documentation for {m}?
What does the documentation say about {m}?
What do the docs say about {m}?
Quote the documentation of {m}.
Show me the docs for {m}.
Look up {m}.
Look up {m} for me please.
Define {m}.
Summarize {m}.
Summarise what {m} does.
Info on {m}
Docs for {m}
help({m})
{m}
{m}?
{m} ?
{m} docs
{m} explained
{m} meaning
{m} usage
{m} python
python {m}
python {m} what does it do
{m}, what is that?
{m}: what does it do?
{m} - what is it for?
So what is {m} then?
And {m}, what does that do?
Any idea what {m} does?
Got a minute? What's {m}?
Could you tell me a bit about {m}?
Could you remind me what {m} is?
Would you mind telling me what {m} does?
In one sentence, what is {m}?
In short: what does {m} do?
In plain words, what does {m} do?
In simple terms, explain {m}.
For a beginner: what does {m} do?
As a newcomer I stumbled over {m}. What's it about?
Suppose I call {m}. What will it do?
If I write {m}, what happens?
The name {m} appears in the standard library. What is it?
What's up with {m} in the standard library?
What role does {m} play?
What job does {m} have?
What functionality does {m} provide?
What effect does {m} have?
Which task does {m} solve?
Which problem is {m} meant for?
Teach me {m}.
Talk to me about {m}.
Say something about {m}.
Let's talk about {m}.
Let us look at {m}.
Next topic: {m}.
Question about {m}: what is it?
Quick question: what does {m} do?
Quick one, {m}?
One more thing, what does {m} do?
Interview question: what is {m}?
Quiz: what does {m} do?
What should I know about {m}?
What is the short version of the documentation of {m}?
What's the first line of the docstring of {m}?
What does the docstring of {m} say?
Read me the docstring of {m}.
Print the docstring of {m}.
Where is {m} and what does it do?
I keep forgetting {m}, what was it again?
Does Python have {m}? What does it do?
Can I use {m} for something?
Can you describe the behaviour of {m}?
Can you give me the gist of {m}?
Am I right that {m} is in the standard library?
Is {m} part of the standard library, and what is it for?
Not sure what {m} is about, please help.
Need a hint about {m}.
Brief me on {m}.
Clarify {m} for me, please.""".splitlines()

WHERE = """Which module has {m}?
Which module contains {m}?
Which module is {m} in?
Which module provides {m}?
Which module do I import for {m}?
Which module do I need for {m}?
Which standard library module offers {m}?
Which package has {m}?
In which module is {m}?
In which module can I find {m}?
In what module does {m} live?
What module is {m} in?
What module does {m} come from?
What module do I need to import to use {m}?
Where is {m} defined?
Where is {m}?
Where do I find {m}?
Where can I find {m} in the standard library?
Where does {m} live?
Where does {m} come from?
Where do I import {m} from?
From which module do I import {m}?
From where can I import {m}?
How do I import {m}?
How can I import {m}?
I get a NameError for {m}. What do I need to import?
I need {m}, what should I import?
I want to use {m}. Which import do I need?
I forgot where {m} is.
Remind me where {m} lives.
Tell me the module of {m}.
Name the module that has {m}.
What is the full name of {m}?
What should I import to get {m}?
To which module does {m} belong?
Which library is {m} part of?
Which part of the standard library has {m}?
Who provides {m}?
{m} module?
{m} import from where
{m} is in which module?
{m} belongs to what module?
{m}, which module was that again?
import for {m}?
module of {m}
module for {m}
Is {m} in some module? Which one?
Do I need an import for {m}?
Do you know where {m} is?
Can you tell me which module {m} is in?""".splitlines()

DESCRIBED = """Which function does this: {d}
Which function do I use to {d}
Which function should I call to {d}
Which function can {d}
Which function would {d}
Which function in the standard library can {d}
Is there a function to {d}
Is there something in the standard library to {d}
Is there a way to {d}
Is there a standard function that can {d}
How do I {d}
How can I {d}
How could I {d}
How would I {d}
How does one {d}
How to {d}
How do you {d} in Python
What can I use to {d}
What do I call to {d}
What should I use to {d}
What function lets me {d}
What is the function to {d}
What's the function to {d}
What's the best way to {d}
I want to {d}
I need to {d}
I would like to {d}
I am trying to {d}
I have to {d}. What do I use
I'm looking for a function to {d}
I'm looking for something to {d}
Name a function to {d}
Name the function: {d}
Find me a function to {d}
Give me a function to {d}
Give me the function to {d}
Tell me how to {d}
Show me how to {d}
Please help me to {d}
What is used to {d}
Which tool would you use to {d}
Which call would {d}
In Python, how do I {d}
With the standard library, how can I {d}
python function to {d}
python {d}
function: {d}
{d}
My task: {d}
Suppose I want to {d}
Do you know a function to {d}
Can Python {d}
Can you help me {d}
There was a function to {d}, which one
What's it called when I want to {d}
Which module helps me to {d}
Which module do I need to {d}
Does the standard library let me {d}""".splitlines()

DESCRIBED_NOUN = """Which name in the standard library is this: {d}
What is described as: {d}
What is the name for this: {d}
Which one is it: {d}
Is there something like this: {d}
I am looking for this: {d}
Name it: {d}
{d}
The documentation says: {d} What is it
Whose documentation begins like this: {d}
Find the name for: {d}
Which class or function is that: {d}
Is there one of these: {d}
I need this: {d}
python {d}""".splitlines()

MODULE_ABOUT = """What is the {m} module?
What does the {m} module do?
What is the {m} module for?
What is the module {m} good for?
Explain the {m} module.
Tell me about the {m} module.
Tell me about the module {m}.
Describe the {m} module.
What can I do with the {m} module?
When do I need the {m} module?
Why would I import the {m} module?
What does import {m} give me?
What do I get when I import {m}?
What happens if I write import {m}?
import {m}
module {m}
{m} module
What's in the {m} module?
What is in {m} (the module)?
Give me a summary of the module {m}.
Which module is {m}?
What does the docstring of the {m} module say?
How would you describe the {m} module?
I imported the {m} module. What is it for?
Is the {m} module useful?
Do you know the {m} module?
What kind of module is {m}?
Help me understand the {m} module.""".splitlines()

AGAIN = """Which module is it in?
Which module was that?
And which module is that?
And where is it?
Where do I import it from?
What module?
Which module do I import for it?
Say that again.
Could you repeat that?
Please repeat.
Again please
What did you say it does?
What does it do again?
Sorry, what was it?
Once more, please.
And what does it do?
Tell me again what it is.
I did not get that.
Come again?""".splitlines()

NEXT = """And {m}?
and {m}?
What about {m}?
How about {m}?
And what about {m}?
And what does {m} do?
And what is {m}?
Okay, and {m}?
Thanks. And {m}?
Thank you! What about {m}?
Now {m}.
Now {m}, please.
Same question for {m}.
The same for {m}
Next: {m}.
Then what is {m}?
Great. What does {m} do then?
I see. And {m}?
Also {m}?
What does {m} do compared to that?
Is {m} similar?
Is {m} the same?
Got it, now tell me about {m}.""".splitlines()

BEFORE = (
    """Hi! |Hi, |Hello! |Hello, |Hey, |hey |Hey there, |Good morning. |Good evening! |Dear demo, |Please: |
Please, |Okay, |OK, |Ok so |So, |Well, |Um, |Hmm. |Right. |Actually, |Quick question: |Quick question. |
A question: |Question: |Sorry to ask: |Sorry, |Silly question, but |Stupid question: |
I'm new to Python. |I am learning Python. |I am a beginner. |Python question: |Python: |In Python: |
In Python, |Regarding Python: |Standard library question: |stdlib: |I have a question. |
I have a small question. |Can you help me? |Could you help? |Help! |I am stuck. |
I'm working on a script. |I am writing a program. |We had a discussion at work. |For my homework: |
For a test: |Just curious: |Just wondering: |Out of curiosity, |Let me ask you something. |Tell me, |
Listen, |Hey eyas, |Eyas, |While refactoring I got stuck. |Reading old code. |I'm debugging. |
Before I forget: |By the way, |Btw """.replace("\n", "")
).split("|")

AFTER = (
    """ Thanks!| Thanks.| Thank you.| Thank you!| thanks| Please be brief.| Be brief.| Keep it short.|
 One sentence is enough.| Short answer please.| In one sentence.| I am curious.| I forgot.|
 I always forget.| I can't remember.| Please.| please| Just the basics.| No code needed.|
 Any help is welcome.| Cheers!| I need it for a project.| It's for my homework.| I use Python 3.|
 And which module is it in?| And in which module?| Which module is it in?| And what does it do?|
 I could not find it.| I'm confused.| I'm new here.| You know, the Python one.| Asking for a friend.""".replace(
        "\n", ""
    )
).split("|")
