// The larger part of the calibration text: a story of our own, in the manner of the nineteenth century. Long sentences,
// dialogue, letters, accounts and things that come back chapters later give queries far away keys to attend to.
#include "text/calibration_text.h"

namespace infinigen {

const std::string_view kCalibrationProse =
    R"prose(CHAPTER I.

In the spring of the year 1838, having served four years and some odd
months as under-clerk in the counting-house of Messrs. Pargeter and Dunn,
sugar merchants at Pernambuco, and having gained in that time a yellow
complexion, a tolerable knowledge of Portuguese, and the sum of one
hundred and eighteen pounds, I took my passage for Bristol in the barque
Constant Anne, of three hundred and ten tons, Bartholomew Rudge, master.
I was then three-and-twenty years old, and had the fixed persuasion,
common to persons of that age who have been much alone, that nothing
remarkable would ever happen to me. I mention it only because I was to be
cured of it within the fortnight, and because I have since observed that
the conviction of a dull destiny is very seldom held by those who really
have one.

The Constant Anne was neither a young vessel nor a handsome one. She had
been built at Whitby for the timber trade, and she carried into warmer
seas the broad bows and the deliberate manners of her native coast, so
that she seemed to meet every wave as a farmer's wife meets a stranger at
the gate, without hostility, but with no intention of being hurried. Her
cabin was panelled in a dark wood which had once been varnished, and there
hung over the table a lamp of so uncertain a temper that Captain Rudge
would suffer no hand but his own to trim it. Beneath the lamp we ate,
and wrote our journals, and played at draughts upon a board which the
carpenter had ruled with a hot iron; and I came in time to regard that
narrow place with an affection which I have not always been able to feel
for much better rooms.

Captain Rudge himself was a short man of sixty, with very bright eyes and
a voice which he kept habitually low, as though he were saving it for some
occasion of importance. He had lost two fingers of the left hand at
Navarino, or, as his mate Mr. Keel privately assured me, in the door of a
hackney coach at Deptford; and he had a way of laying the maimed hand flat
upon the chart, when he was considering our position, that gave to the
most ordinary reckoning an air of solemn oath. He read one book, which was
a volume of sermons wanting the first forty pages, and he held that the
preacher had gained by the loss, since in the remainder he came at once to
the point. With his men he was just, with his owners respectful, and with
the weather he was upon terms of long and mutual suspicion.

There was but one other passenger, and I did not see him until we had been
two days out of sight of land. He had been carried aboard at night, in a
chair, by four negroes from the hospital of the Misericordia, and had lain
since then in the berth next to mine, where I could hear him cough, and
now and then could hear him speak a few words, very civilly, to the boy
who brought his broth. On the third morning, the wind being light and the
sea of that deep and polished blue which belongs to those latitudes, he
was helped up the companion and established on the lee side in a nest of
blankets; and there I made the acquaintance of Mr. Matthew Averell, land
surveyor, a tall and wasted man of two-and-sixty, whose hair was quite
white, and whose hands, though they trembled when they were idle, grew as
steady as stone the moment they closed upon a pencil.

"You are a Thorley," he said to me, before I had well finished wishing him
good morning. "I asked the name of the captain, and then I asked him to
spell it, for there are Thorlys and Thurleys in abundance, but there was
only one family that wrote it as you do; and they lived, when I last had
any news of them, in a square stone house with a walnut tree before it, at
Stoke Merrow, in the county of Somerset." I answered, in great surprise,
that the house and the tree were both still standing, and that my aunt,
Miss Dorothea Thorley, who had brought me up in the one and whipped me for
falling out of the other, was mistress of them to that day. He turned away
his face towards the sea, and was silent for so long that I supposed him
to be fatigued; and when he spoke again it was only to ask me whether they
still kept eels in the mill pond.

CHAPTER II.

On the twenty-fourth of April, being in about thirty-six degrees north, the
wind failed us altogether. There came up from the westward a long, smooth,
oily swell, without a breath to account for it; the sun went down behind a
bank the colour of a bruise; and Captain Rudge, having looked at the glass
and then at the lamp, as if he suspected the two of a conspiracy, directed
Mr. Keel to get the royal yards down on deck and to see the hatches
doubly secured. I asked the mate whether he apprehended bad weather.
"Sir," said Mr. Keel, who was a lean, melancholy man from the Orkneys,
with a great respect for disaster, "I have sailed with the old gentleman
for eleven years, and I never knew him take down a royal yard for the
pleasure of putting it up again. If you have any thing in your berth that
you value, I would wedge it; and if you have not, I would wedge yourself."

The gale struck us a little after midnight. I shall not attempt to set
down what has been so often and so much better described by those whose
profession it is to endure such things; I shall only say that for two
nights and the day between them there was no part of the ship which was
dry, or silent, or still, and that I, who had thought of the sea as a wide
blue floor spread out for the convenience of merchants, learned to think
of it as a range of hills in motion, every one of which had some distinct
design upon us. The Constant Anne behaved as her character had promised.
She was beaten down, and rose; she was struck, and shuddered, and shook
the water from her; she lost her boats, her galley, and eleven feet of her
bulwark, and never, to use the words of the captain, lost her countenance.

It was in the second of those nights that Mr. Averell sent the boy to call
me. I found him propped against the side of his berth, with a lantern
swinging over him, which threw his shadow now to the deck and now to the
beams; and I saw directly that the storm which was shaking all of us had
very nearly shaken him free. He had lying across his knees a long case of
tin, such as is used by men of his calling for the keeping of plans, and
the lid of it was sealed about with black wax. "Mr. Thorley," said he, "I
had hoped to carry this myself as far as a certain white gate in Stoke
Merrow, and to be shown the door afterwards, as I should deserve; but I
have taken a good many levels in my time, and I know when I have come to
the bottom of the slope. You must be so good as to carry it for me."

I said what one says on such occasions, and he put it aside with a little
motion of the hand. "There is a letter within the lid," he went on, "which
is directed to Miss Hester Lyle. If she be dead, you are to read it
yourself, and to act upon it as an honest man. If she be married, you are
to give it to her when her husband is by, for there is nothing in it that
he may not hear. And if she be neither dead nor married," and here the
ship fell over with such violence that I was obliged to hold him in my
arms to keep him from being thrown upon the floor, "then tell her that the
true line goes to the north of the alders, and that I have known it every
day for nine-and-twenty years." I promised him; and he made me repeat the
words about the alders until I had them perfectly, as a master hears a
child his lesson.

He lived until the gale had blown itself out, and died upon the morning of
the twenty-seventh, in a clear light, with a cold fresh wind from the
north-west, and the whole sea running in ridges of green and silver to the
edge of the sky. We buried him the same afternoon. Captain Rudge read the
service from memory, his book having been spoiled, and he read it in that
voice which I had supposed to be laid up for some occasion, and which now
came forth, strong and quite gentle, over the noise of the water. When all
was done he put on his hat, laid his three-fingered hand for a moment on
the broken rail, and said to me, "He paid for his passage to Bristol, Mr.
Thorley, and I never before took a man's money and set him down short. I
should take it kindly if you would see that his business goes the rest of
the way." On the nineteenth of May we came up the Channel to Kingroad.

CHAPTER III.

The village of Stoke Merrow lies in a fold of the hills, about nine miles
from the turnpike and, as it used to be said, about ninety years from the
rest of the kingdom. The traveller who comes down upon it by Gallows Lane,
which is the only road that a carriage can attempt with any dignity, sees
first the tower of the church, which leans a little to the south, as if it
were hard of hearing upon that side; then the thatched roofs, set down at
every angle but a right one; then the mill, with its great dripping wheel,
and the white thread of the mill stream; and last of all, above the mill
and half hidden by trees, a sheet of still water, of some seven acres,
which the maps call Merrow Mere, but which no inhabitant has ever called
by any other name than the Monk's Pool. The hall of the Vallances stands
upon the farther slope, and has turned its back upon the village, having
been built by a gentleman who preferred the view of his own deer.

I came down Gallows Lane on foot, upon the evening of the twenty-second
of May, with the tin case slung behind me like a musket; and before I had
got so far as the pump I had been recognised by three dogs, a blacksmith,
and old Mrs. Tibbet, who kept the shop. Mrs. Tibbet sold bacon, bootlaces,
treacle, ballads, and advice, the last being thrown in without charge to
make weight for the others. She told me, while she held me by the sleeve,
that I was grown as thin as a rake and as brown as a kettle; that my aunt
was well, but would not own to her rheumatism; that the curate had taken
to the flute; that Daniel Oakes the miller was to be ruined by the law
before Michaelmas; and that if I had brought home a parrot I must on no
account let it be seen by her sister, who had set her heart upon one.

My aunt Dorothea received me at the door of the square stone house, under
the walnut tree, with a composure which she had evidently been preparing
for several days. She was at that time in her sixty-second year, upright,
spare, and exact, with a bunch of keys at her girdle which announced her
coming from room to room as the bell announces the leader of a flock. She
gave me her cheek; she remarked that I had no doubt been living upon
oranges; and then, all at once, she took my face between her two hands and
looked into it as if it were an account which had been long outstanding,
and which, against all expectation, had been paid in full. After this she
begged my pardon for the state of the passage, which was perfectly clean,
and went away to see about the mutton, and I heard the keys go jingling
down to the kitchen with a most unusual irregularity.

At supper I asked her, as carelessly as I could, whether there was still
a Miss Lyle in the place. "There is Hester Lyle at the white gate," said
my aunt, "where she has been these forty years, and where you have been
given seed-cake more times than I approved of. You cannot have forgotten
her, Edmund. She taught half the parish to read, and would have taught the
other half if their fathers could have spared them from scaring rooks."
I had not forgotten her; but to my childish mind she had always been Miss
Hester, and it had never entered my head that she possessed another name,
or that the grey lady who cut the seed-cake could once have been any thing
to a man who measured land. I asked if she had never married. My aunt laid
down her fork. "She was to have done so," said she, "in the autumn of the
year nine; but the gentleman went away, and there was an end of it."

)prose"
    R"prose("And what was the gentleman's name?" said I; though my heart had begun to
beat in a manner that made the question difficult. "His name was Averell,"
replied my aunt, "and I will thank you not to speak it before Hester, who
has not heard it in this house for a very long time. He had been sent for
by old Sir Giles Vallance, to make a plan of the estate, and he lodged for
the whole of one summer with my mother, in the room over the porch. He was
a well-conducted young man, and wiped his feet. In the month of September
he delivered his plan at the hall, and was paid for it, and the same night
he walked out of the village by Gallows Lane, leaving two clean shirts and
a letter of four lines. I never saw the letter. I saw Hester when she had
read it, and I have not thought so well of surveyors from that day."

I did not think it right to tell my aunt what lay at that moment upon my
bed, in the very room over the porch; for it seemed to me that the first
hearing of it belonged to another. But I lay long awake, listening to the
walnut leaves brushing upon the pane, and to the far-off sound of the mill
water, which in that valley is never wholly out of the ear; and I thought
how the man whom I had seen go down into the grey Atlantic, wrapped in a
piece of the Constant Anne's old topsail, had once lain between those same
four walls and listened to the same two sounds, with all the summer of his
life before him. It appeared to me then a strange thing that a house
should keep so little of the people who have lived in it; but in this, as
I was presently to discover, I did our house an injustice.

CHAPTER IV.

The way from my aunt's door to the white gate goes round by the head of
the Monk's Pool, and as it was not yet seven when I set out next morning,
and too early to wait upon a lady, I turned aside by the stile and went
down to the water. It was one of those mornings at the end of May in which
the whole country seems to be holding its breath for fear of spilling
something. The pool lay without a wrinkle, taking the image of the alders
so exactly that a swallow, stooping to drink, appeared to be met and
kissed at the surface by another swallow out of the depth; and along the
margin, where the flags were in yellow flower, a thin smoke of vapour was
still rising, and bending all one way, and vanishing as the sunlight came
down to it between the trees.

Upon the end of a plank, which was thrown out from the bank on two stakes,
there was lying at full length, with his face about six inches from the
water, a stout gentleman in a snuff-coloured coat. I knew him at once by
the soles of his boots. "Do not come upon the plank," said he, without
turning round, "for there is a grub of the dragon-fly upon this reed,
which has been above an hour in making up its mind to leave the water; and
if you shake it in again, whoever you are, I shall be obliged to throw you
in after it." I sat down upon the bank accordingly; and for twenty minutes
neither of us spoke a word, which was a very usual way of beginning a
conversation with Mr. Septimus Garrow.

He had been for thirty years the master of the free school, and had
retired from it, as he said, in order to complete his education. There was
no creature in the parish, from the otter to the water-flea, with which he
was not upon visiting terms. He kept a journal of the pool, which he had
begun upon the first of January, 1816, and in which he had not since then
failed to make an entry upon any day when he could stand; and in it he set
down not only the coming of the swallow and the first note of the chiff-
chaff, but the warmth of the water at three several depths, and its height
against a notch which he had cut in the great stone of the sluice. The
village thought him a harmless man who had been a little turned by Latin.
I have lived to see his name in the proceedings of learned societies; but
I think it was never spoken with more respect than upon a day of which I
shall have to tell, by twelve plain farmers in a box.

I crept near enough at last to see what he was watching. The grub, which
was a squat and muddy thing, the very picture of a discontented old age,
had climbed about a hand's breadth above the surface and fastened itself
there with all its claws. Presently the skin of its back was seen to part,
in a fine pale line, as the seam of a glove will part; through the opening
there was thrust up a moist green hump, and then a head, all eyes; and the
new creature, having drawn out its legs one after another, fell backward,
and hung there, head downwards, as if it were exhausted or appalled. "He
will remain so for half an hour," whispered Mr. Garrow. "The ignorant
suppose him to be resting. I believe, for my part, that he is waiting for
his legs to grow hard enough to be trusted, and I have known a good many
young gentlemen who would have done well to follow his example."

When it had hung its appointed time the insect made a sudden effort, bent
itself upward, seized upon the empty husk, and drew out the remainder of
its body; and we saw the wings, which had been no more than four crumpled
shreds, like wet paper, spread by degrees, and clear, and take the light,
until each of them was a perfect pane of glass. It shivered them twice or
thrice. Then the reed was bare, and there was a glitter going away from us
across the pool, and Mr. Garrow sat up, with a groan, and looked at his
watch. "Two hours and eleven minutes," said he. "It lived at the bottom of
the mud for three years, Edmund Thorley, and ate its neighbours, and had
no more notion of the air than you or I have of the New Jerusalem; and I
never see the thing done without feeling that I have been told something
in confidence. When did you come home, and have they taught you any thing
in the Brazils beyond the price of sugar?"

We walked together round the head of the water, and he showed me what was
new since I had left. The bed of white lilies had crept outward by eleven
yards; the herons had forsaken the old ash and gone over to the firs; and
the freshwater mussels, in which he took a particular delight, were dying
by hundreds along the eastern shore, where the mud lay bare and cracked
for the breadth of a cart road. I asked him the reason of it, for we had
had, as my aunt informed me, a wet winter. His face, which was naturally
as round and as cheerful as an apple, grew dark. "The reason of it," said
he, "is Sir Hector Vallance. He has opened a new cut beyond the alders, to
feed a piece of ornamental water before his drawing-room windows; he has
put a lock on the sluice; and when Daniel Oakes broke off the lock, having
forty sacks to grind and not water enough to drown a kitten, Sir Hector
brought an action against him for a trespass. The pool is his, he says,
and the stone, and the stream, and I suppose the dragon-fly."

"And is it his?" I inquired. "It was never his," cried Mr. Garrow, "nor
his father's, nor any man's. It was left by the last of the monks to the
poor of the parish and the mill of the parish, for so long as water should
run downhill; and there was a boundary which every old woman in the place
could have walked blindfold. But the deed was burned with the vestry in
the year 1790, and the old women are dead; and Sir Hector has a great plan
upon parchment, with a compass and a coat of arms, made by a sworn
surveyor in the time of Sir Giles, which carries his line to the south of
the alders, and takes in the sluice, and the whole of the water as far as
the place where you are standing." I stopped short upon the path. To the
south of the alders! I heard again the labouring of the ship, and saw the
lantern swing, and felt the old man's hand close upon my wrist; and I
suppose that I turned pale, for Mr. Garrow told me, with much kindness,
that I had walked too far before breakfast.

CHAPTER V.

The cottage at the white gate was so small, and the garden before it so
crowded with hollyhocks, and lavender, and tall white lilies not yet in
bloom, that it had the look of a thing which the flowers had found there
and had agreed to take care of. Miss Lyle was tying up a rose beside the
door. I remembered her as old; and I perceived now, as one does perceive
on returning to a place after four years, that she had been nothing of the
kind, but a woman in the middle of life, whose hair had become grey before
its time, and whose eyes had never become so at all. She held out both her
hands to me; and then she saw the tin case upon my shoulder, with the black
wax about the lid. I have often considered in what words I ought to have
prepared her, and had composed several sentences on my way from the pool;
but I had no need of them. "You have come from Matthew," said she.

I told her all that I had to tell, standing in the little path, with the
bees going to and fro between us; and she listened to it with her eyes on
my face, and did not interrupt me. When I came to the message I gave it
exactly as I had been taught it, that the true line went to the north of
the alders, and that he had known it every day for nine-and-twenty years.
She said then, very quietly, "So have I;" and when I looked at her in
astonishment, she added, "I held the other end of the chain, Edmund. It
was June, and his man had been taken ill with eating green gooseberries,
and there was no one else at leisure. I held the chain for him from the
sluice stone to the hollow oak, and he wrote down every figure as I called
it out. Do you suppose that I have forgotten where I stood?"

She broke the wax herself, with a garden knife. The letter was of several
sheets, in a hand as clear as an engraving, and had been written, as the
date showed, at Pernambuco, upon the second of March, when he had first
made up his mind to attempt the voyage. She read it through, sitting on
the bench by the door, while I walked about among the currant bushes; and
when she had come to the end, she called to me and put it into my hands,
saying that what concerned only herself she knew already, and had known
always, and that what remained was the property of the parish. I copied it
the same evening by her permission, and I give it here, leaving out no
more than a few lines at the beginning and at the close.

"I was paid sixty guineas," the letter said, "for the plan of the Merrow
estate, and of these I had honestly earned forty. I had drawn the line
where you and I had found it. Sir Giles looked upon it a good while, and
then inquired of me, in the pleasantest manner, what it would cost to have
the alders upon the other side of it. I said that it could not be done. He
did not dispute with me; he remarked only that he had some interest with
the Commissioners, that there were eleven parishes in the county presently
to be enclosed, and that the young man who should have the surveying of
eleven parishes might marry upon it. He desired me to take the plan home,
and to consider whether my eye had not been deceived by the sun.

"I sat up with it for three nights, in the room over Mrs. Thorley's porch.
I told myself that it was but a strip of bog and a few bushes; that no one
had disputed the water in the memory of man, and no one would; that it was
a matter of an inch and a quarter upon the parchment; and that you were to
have a house with a garden. Upon the third night I drew it anew. I was
always a neat draughtsman, and the new sheet was handsomer than the old. I
carried it to the hall, and received my money, and was coming home by the
side of the pool, when I saw you upon the path before me; and you held up
your hand, Hester, and called to me in jest, as you had done in June, that
you were standing at the mark. I answered something. But I knew from that
instant that I could never stand before you in any place where you would
not be at the mark, and I an inch and a quarter to the south of it.

)prose"
    R"prose("It would have been simple to go back and put the parchment in the fire.
I have gone back and done it, in my mind, upon perhaps nine thousand
nights. In place of it I ran away, which is what a man does when he wishes
to be punished and has not the courage to be accused. I have prospered
moderately. I have never since that day set down a false figure, not for
governors nor for bishops; and I have had the reputation among my fellows
of being honest to a degree that was somewhat tedious. I learn now, from a
newspaper in which a case of sugar-knives had been wrapped, that there is
a suit preparing between the son of Sir Giles and the miller of Stoke
Merrow. I have kept the first sheet. It is in this case, with the field
book, in which the figures are in my hand, and the small crosses in the
margin are in yours. I am too ill to come, and I am coming."

When I had finished it I could not immediately find any thing to say. Miss
Lyle had taken from the case the roll of parchment, which was quite white
and fresh, for it had lain for all those years in the dark; and with it a
narrow book in a calf cover, stained at one corner with what may have been
the water of the Monk's Pool. She opened it upon her knee. Down the edge of
the page, against each of the measurements, there was a little cross in
faded ink, made with a great deal of care, and one of them, I saw, had been
made into the likeness of a daisy. "I was five-and-twenty," said she, "and
thought that if there must be so many of them, they need not all be plain."
And with that she put up her hand before her eyes; and I went away through
the white gate, and closed it after me as softly as I was able.

CHAPTER VI.

It is one thing to possess the truth, and another to be able to prove it;
and the first person to acquaint us with the distance between them was Mr.
Jonas Pettigrew, attorney, of Market Sallow, who had undertaken the defence
of Daniel Oakes for a fee of which he spoke with melancholy, as of a friend
whom he did not expect to meet again. We waited upon him on the first of
June, Miss Lyle, the miller, Mr. Garrow, and I. He was a small dry man with
a large damp pocket-handkerchief; and when he had spread the parchment on
his table, and had put a weight upon each of the corners, he walked about
it for some time with his head upon one side, like a robin about a crumb
which may possibly be attached to a string.

"It is a beautiful document," said he, "and I believe in every inch of it;
but consider, my dear madam, how it will appear to a gentleman who is paid
not to do so. Here is a plan, of which no one has heard a word for almost
thirty years. It is produced upon the eve of the trial. It was the work of
a person who is dead, and who by his own account was a rogue; it has been
brought home by a young man who was born, if I may say so, under the very
shadow of the mill; and it is confirmed by a lady who, as my friend on the
other side will find a delicate manner of observing, had once an interest
in the draughtsman. They will say that Sir Giles refused this plan because
it was incorrect, and that Mr. Averell drew the second because he had found
out his error. They will inquire by what proof we can show that he was ever
at the north side of the alders in his life. Have we any such proof? Is
there a scrap of paper, of the year nine, which is not in his own hand?"

My aunt was sitting at her bureau when I entered, with her spectacles upon
her nose, and before her the book of the household, which she made up upon
the first of every month. I had by this time told her all, and she had
received it in silence, saying merely that she would have the room over the
porch turned out; but from that day I had heard her speak of surveyors, in
general, with a certain indulgence. I related to her now what the attorney
had said. I repeated his question as to a scrap of paper of the year nine;
and I was going on to describe his handkerchief, when I became aware that
she was no longer attending to me. She had taken off her spectacles, and
was looking at the upper shelf of the bureau, where there stood, in a row
of some five-and-forty, all bound alike in grey canvas and all labelled on
the back, the account books of my grandmother and of herself.

"My mother," said my aunt Dorothea, "was of opinion that a house in which
sixpence could be spent without being written down was a house upon the
sand." She mounted upon a footstool, and passed her finger along the row,
and drew out the volume which was marked with the year 1809. I have it by
me as I write. It is ruled by hand, in red; and it contains the history of
twelve months of the life of a family of six persons, two maids, and a cow,
related without a single adjective.

We turned to the month of June, and my aunt read aloud, following the line
with the point of a knitting-needle. "June the 3rd: for soap, 4s. 2d. For
mending the jack, 1s. 6d. June the 5th: of Mr. Averell, for his lodging,
one month, received 1 pound 12s. 0d. June the 9th: for 14 lbs. of sugar,
against the strawberries, 11s. 8d. June the 14th," and here her voice, that
was commonly as level as a shelf, began to rise; "June the 14th: sent out to
Mr. Averell and H. Lyle, they measuring the pool, and dining on the bank by
the hollow oak, north of the alders, because the ground was dry there: cold
fowl, 2s. 6d.; one bottle of cider, 5d.; and a plate broken, 4d. Mem.: the
plate was of the blue set, and now there are but eleven." My aunt laid the
needle down. "There are eleven to this day," said she. "I have often asked
myself what had become of the other one."

Nor was this the whole; for having once begun to search she would not leave
off, and we sat until past midnight with the grey volumes heaped about us
upon the carpet. In every year from 1793, when the first of them began, as
far as the year 1821, under the date of Lady Day, or within a week of it,
there stood the same small entry: "Paid the churchwarden, our pool penny,
for leave of the water, 1d." There were twenty-nine such entries, making
together two shillings and fivepence; and after the last of them was written,
in my aunt's own hand, "The warden says he shall collect this no more, it
being not worth his shoe leather." It had been paid to the church upon behalf
of the poor; and it had never in any year, by so much as a farthing, been
paid to the hall. "I do not understand the law," said my aunt, as she took
up her candle, "but I have always understood that a person does not pay rent
to any body except the landlord."

CHAPTER VII.

In the second week of July I received, to my great surprise, a card of
invitation to dine at Merrow Hall. My aunt had one likewise, and so had Mr.
Garrow, and the curate, Mr. Philip Wace, with a line in the corner to beg
that he would bring his flute. It was the opinion of Mrs. Tibbet, who had
the news from the footman before we had it from the post, that Sir Hector
designed to poison us; it was the opinion of my aunt that he designed to be
civil, which in a Vallance was more to be suspected; but we agreed, after
some debate, that to stay away would have the appearance of being afraid.
My aunt put on the grey silk which she had worn at my christening, and we
drove over by the upper road in the fly from the Three Cranes, with the
flute lying across our knees.

Sir Hector was a handsome, heavy, courteous man, somewhat above forty, who
had been left a widower early, and who had since given his heart to the
improvement of his grounds. I had been prepared to find in him a tyrant out
of a ballad, and was quite disconcerted to be asked, with every appearance
of interest, how the sugar cane was planted. He placed my aunt at his right
hand. Opposite to her was his mother, the dowager, old Lady Vallance, who
was eighty-one years of age, extremely deaf, and dressed in black velvet
with a quantity of yellow lace; and the remaining places were filled by a
Colonel Strake, who had the gout, by the two Miss Strakes, who had not yet
any thing in particular, and by a Mr. Lucius Fanshawe, a barrister upon the
western circuit, with a Roman nose, who listened to whatever was said to
him as if he might be called upon to make it appear ridiculous.

The talk was for some while of strawberries. Colonel Strake then gave it as
his belief that the country was going to the dogs by reason of the railways,
and that in ten years there would be no foxes; to which Mr. Garrow answered
that he had made some inquiry upon the point, and that the foxes along the
new line at Swindon appeared to be of a contrary opinion, for they had dug
their earths into the embankment, where the soil was light and the drainage
excellent, and brought up their cubs to take no more account of the engine
than of a thunderstorm. "Nature, sir," said Mr. Garrow, helping himself to
the peas, "has no politics. She will accept of any alteration that we make,
if only we allow her time to walk round it, and see where the door is. It is
the sudden thing that she does not forgive. If you were to let a pool down
by an inch in the year, the creatures would very probably go down along with
it; but if you let it down by two feet in a fortnight, they die."

This was so plain a challenge that one of the Miss Strakes dropped her fan.
Sir Hector only smiled. "I perceive that we are come to the water," said he,
"and since we are all friends here I shall be glad to speak of it; for I do
assure you, Miss Thorley, that I bear no malice against the man Oakes. I
have offered to build him a mill with a steam engine, upon the high road. I
have offered him a lease of the old one at a guinea. But I find upon my
father's plan that the pool is mine, and I take it to be the duty of a man
to know what belongs to him, and to hold it; for if he does not respect his
own boundaries, how should he be brought to respect his neighbour's? I
never in my life desired a yard of ground that was not my own. Show me that
it is not so, and I will fill up the new cut with my own spade."

"That is very handsomely said," observed my aunt, "and I shall make a note
of it." Mr. Fanshawe here interposed, and said with a laugh that he must
entreat his client to say nothing more, handsome or otherwise, before the
twenty-third of August. But there was one at the table who had not heard
him. Old Lady Vallance had been looking for some time fixedly at my aunt,
and she now bent forward, and spoke in the loud and toneless voice of those
who cannot hear themselves. "You are Martha Thorley's girl," she said. "You
have her chin. There was a young man used to lodge with your mother, who
drew the maps. He was a pretty young man, and he cried in my husband's
library. I was behind the screen, looking for my scissors. I said to Sir
Giles, 'What have you done to make him cry?' and he said to me, 'My lady, I
have only asked him to move a few bushes.'"

CHAPTER VIII.

The cause of Vallance against Oakes came on at the assizes at Wells, before
Mr. Justice Borrowdale and a special jury, upon Thursday, the twenty-third
of August, 1838. The whole of Stoke Merrow was there that could walk, or
ride, or be lifted into a waggon; Mrs. Tibbet had shut up the shop, which
had not been done since the coronation of King William; and the blacksmith,
in a collar, was to be seen explaining to a javelin-man the principle of the
hatch. Daniel Oakes sat beneath his counsel with all his seven children in
a row behind him, graduated like the pipes of an organ. I looked about for
Sir Hector, and found him at last in a corner under the gallery, alone, with
his hat upon his knees and his eyes upon the ground; and I was struck to see
how much older he had grown in the space of six weeks.

)prose"
    R"prose(Mr. Fanshawe opened the case for the plaintiff, and did it, as I thought,
with more correctness than spirit. He produced the plan of 1809, which was
hung upon the wall, with its compass, and its coat of arms, and its fair red
line sweeping to the south of the alders; he proved that it had come out of
the muniment room at the hall; he called a bailiff to swear to the lock, and
a keeper to swear to the breaking of it. The judge, who was a very aged man
with a skull-cap under his wig, and who had been thought to be asleep, here
opened one eye, and asked the keeper whether in his time the miller had ever
before been hindered from drawing the water. The keeper said, not that he
knew of, my lord. "And how long has your time been?" said the judge. "One-
and-thirty years, my lord, come Candlemas," answered the keeper; whereupon
the eye was closed again, but I observed that something had been written.

Our own counsel was a Mr. Hartopp, a rough, slow, good-humoured person, who
had the art of seeming to discover each thing at the same moment with the
jury. He called me, and I told of the voyage, and of the night of the storm;
and he drew from me every particular of the tin case, the wax, and the lamp,
until I could see that the twelve gentlemen were fairly at sea with us, and
holding to the rail. There was a stir towards the back of the court when I
had done, and I beheld Captain Rudge, in a blue coat with gilt buttons, who
had brought the Constant Anne round from Cardiff for the purpose, and had
walked from the port of Bristol in the night because the coach was full. He
laid his left hand flat upon the book to be sworn, and was bidden to use the
other. He deposed that he had seen the case come on board sealed, and had
seen it go over the side sealed; and being asked by Mr. Fanshawe if he could
undertake to say that the deceased had been in his right mind, he replied
that he had found him so in a gale of wind, when it is easily perceived.

Then Miss Lyle was called. She was dressed in grey, as usual, with a sprig of
lavender at her breast; and when she had put back her veil the entire court
became still. Mr. Hartopp handed up to her the field book in the calf cover,
and asked her only what it was, and whose were the crosses, and where she had
been standing when she had made them; and she told him, in that clear voice
from which half the witnesses in the room had learned their letters. He asked
her finally if she saw upon the wall a true plan of what she had helped to
measure. She looked at the great parchment for some moments. "No," said she.
"It is very beautifully drawn; but that is not where I stood." Mr. Fanshawe
half rose, and looked across at his client in the corner under the gallery;
and I saw Sir Hector, without lifting up his eyes, slowly shake his head. Mr.
Fanshawe said that he had no question to put to this lady, and sat down.

My aunt followed, with six of the grey volumes in the arms of a constable. I
believe there never was a witness who gave so little trouble, or who so much
alarmed the bar. She read out the entry of the fourteenth of June; she read
the pool pennies, year by year, until his lordship was good enough to say
that he would take the remainder as read. "You are quite certain, madam,"
asked Mr. Hartopp, "that this book was written up at the time, and not made
to serve an occasion?" My aunt regarded him over her spectacles. "My mother
entered in that book, upon the same page," said she, "the sum of fourpence,
for a plate. I have brought with me the other eleven. I should be glad to be
told what occasion she could have supposed that they would serve." And she
had in truth brought them, in a basket, packed with hay; and one of them was
handed up to the judge, who turned it over, and remarked that it was a very
good blue, and that one did not now see it.

The last to be examined was Mr. Garrow; and it was over him that the struggle
had been expected, for it was known that a professor had been brought down
from London in order to confute him. He carried into the box two-and-twenty
volumes of his journal and a pickle jar. He showed that from the first day of
January, 1816, to the eleventh of February last, when the new cut was opened,
the water had never stood more than five inches above the notch nor four
inches under it; and that this notch agreed, to a hair, with the level which
Mr. Averell had written down in the field book, in the year 1809, as the
"ancient mark upon the stone." Then he took out of the jar a mussel as large
as his hand, and explained to the jury how it adds to its shell by a ring for
every year, as a tree does; how it cannot live out of the water; and how he
had found them, of forty rings and upwards, lying dead in their own places at
the north side of the alders, where the plaintiff's plan showed dry land.

"Do you ask us to believe, sir," said Mr. Fanshawe, "that a shell-fish is to
be received as a witness against a parchment?" Mr. Garrow considered of this
in his usual manner, as if it had been put to him by a promising boy. "I ask
you to believe it, sir," said he, "because the shell-fish had nothing to gain
by it. It was not paid sixty guineas. It had not any expectation of surveying
eleven parishes. It sat where the water was, for as long as there was water,
and it put down one line in the year, and never went back to alter it; and I
do not know of what more can be said for any historian." The old judge was
observed to open both his eyes; and there arose among the twelve farmers in
the box a kind of deep hum, which is the sound that a Somersetshire man makes
when he has been convinced, and is not in any hurry to mention it.

The professor from London was never called. Before Mr. Hartopp could begin
his speech there was a movement under the gallery, and Sir Hector Vallance
came forward, with his hat in his hand, to the table where the counsel sat,
and spoke a few words to Mr. Fanshawe, who seemed to remonstrate, and then
shrugged up his shoulders. "My lord," said Mr. Fanshawe, "I am instructed to
submit to a verdict for the defendant. My client desires me to say that he
brought this action in the belief that the plan was an honest one; that he
has had reason, since a certain day in July, to doubt of it; that he ought
to have withdrawn upon that day, and did not, because it was hard for a son
to do; and that he will pay all the costs." "It does him credit," said the
judge. "Gentlemen, you will find for the miller;" and they found for him, it
being then a quarter before four o'clock, without so much as turning round.

CHAPTER IX.

I have by me the reckoning which my aunt drew up of our own expenses in this
affair, and I transcribe it, because she would have wished that it should
not be lost. "To the fly, to Merrow Hall and back, 7s. 6d. To ditto, to Wells,
two days, 1 pound 18s. 0d. To beds at the Swan, three, at 2s., 6s. 0d. To a
dinner for Captain Rudge, who had eaten nothing since Bristol, 3s. 9d. To the
constable, for carrying of the books, 1s. 0d. To hay, for the plates, 2d. To
sundry gingerbread, for the children of D. Oakes, 1s. 2d. In all, 2 pounds
17s. 7d. Received of Sir H. Vallance, on the 3rd of September, the same; and I
gave him a receipt." Beneath this there is one line more, which is written a
little smaller, as if the writer had not been altogether certain that it was
proper to the place. "N.B.: all the eleven came home whole."

Sir Hector was as good as the word which my aunt had made a note of. On the
Monday after the trial, as I was crossing the upper meadow at an early hour,
I heard the sound of digging from beyond the alders; and going down there I
found that gentleman in his shirt sleeves, up to his knees in the new cut,
with a spade in his hand, and a great blister already upon the palm of it. He
had sent away his men. "I said it before witnesses, Mr. Thorley," said he,
"and I find it a good deal heavier than I had supposed." I took off my coat,
and got down beside him; in about an hour's time Daniel Oakes, who had seen
us from the mill, came up the bank with a shovel over his shoulder, and stood
looking on, and then without any remark got down upon the other side. Nobody
talked. By noon there was a bank of clay across the mouth of the cut as broad
as a cart; and the water, which had been running off so quietly since the
winter, stopped, and seemed to think, and began to turn again towards us.

It was full autumn before the pool had come up to the notch. I remember the
day well, for I had gone out with Mr. Garrow into Abbot's Wood, which clothes
the hill behind the firs, to look for a sort of fungus that he believed to be
confined to the roots of very old beeches. There had been a frost in the
night, the first of the season, and the leaves were coming down in the still
air, not by any force of wind, but each of its own motion, with a small dry
tick as the stalk gave way; so that the entire wood was filled with a sound
like that of a great many watches. The squirrels were at work upon the mast.

We came out of the trees by the hollow oak; and there, on the dry ground to
the north of the alders, we saw Miss Lyle. She was sitting on a fallen trunk,
with her bonnet off, and looking upon the water, which lay up to the very lip
of the old stone, brimming and bright, with the yellow leaves sailing over
it; and there was at her side a young tree, with its roots wrapped about in
sacking. She told us that it was a walnut, of my aunt's raising, from a nut
of the great tree before the door; and that Sir Hector had been with her that
morning to ask if he might set up in this place some sort of monument, upon
which the true boundary should be written. "I told him that I would rather
have something that could grow," said she. "Will you dig the hole for me,
Edmund? He would have it exactly at the mark; and I believe that I can still
find it without the chain."

She walked from us some forty paces along the bank, without looking to the
right hand or to the left, and stood still, and turned about, and put up her
arm. The sun was behind her, low down and golden between the stems; and it
came to me that just so must she have appeared, upon one evening in September,
to a man coming home by the side of the pool with sixty guineas in his pocket.
I dug the hole. At about a foot beneath the turf my spade grated upon
something; and I took it up, and rubbed away the earth with my thumb, and saw
that it was a piece of blue earthenware, with a part of a bridge upon it and
the half of a willow. Mr. Garrow began to say that it could not be of any
great antiquity; but I trod, with intention, upon his foot. Miss Lyle held it
for a while in the hollow of her hand. "He was so much vexed at breaking it,"
said she; "he buried it, that your grandmother should not know;" and she
laughed, as a girl laughs, and then she wept a little, and was comforted.

My aunt Dorothea kept her books to the last. The final entry is of the seventh
of March, 1857, and was made upon the morning of the day on which she died; it
records the payment of one penny, to the churchwarden, for leave of the water,
a custom which she had insisted on reviving in the spring that followed the
trial, and which has been observed in the parish ever since, with a dinner. I
have kept on the row of grey volumes, though with a less steady hand; and there
are now of them eighty and more. When I was young I considered it a strange
thing that a house should keep so little of the people who had lived in it. I
have grown old in the same house, in the room over the porch, and I am of
another mind; for I think that it keeps every thing, down to the price of a
broken plate, and asks nothing of us but that we should have put it down truly
at the time.

)prose"
    R"prose(Miss Lyle lived to sit beneath the shade of her walnut tree. She was brought
there in a chair, when she could no longer walk so far, on most fine afternoons
of summer, by one or another of those whom she had taught to read; and there
Mr. Garrow, who was by then past eighty, would come down along the bank to pay
his respects to her, and would tell her the height of the water. I was with
them upon the last of these occasions, at the end of a day in June. A dragon-fly
had settled on the arm of her chair, and was opening and shutting the light on
its wings. "How does it stand this evening?" asked Miss Lyle, as she had asked
it of him so many times; and the old man looked towards the stone, where the
notch was, and took off his hat to her. "At the mark, ma'am," said he. "Exactly
at the mark."

)prose";

}  // namespace infinigen
