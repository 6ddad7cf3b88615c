#include <algorithm>
#include <array>
#include <numeric>
#include <span>
#include <string_view>

#include "base/check.h"
#include "eval/filler.h"

namespace infinigen {
namespace {

using Words = std::span<const std::string_view>;

constexpr std::string_view kWomen[] = {"Agatha", "Berta",  "Celia", "Dora",  "Elise",  "Frieda", "Gerda",   "Helga",
                                       "Irene",  "Judith", "Klara", "Lydia", "Marion", "Nelly",  "Ottilie", "Paula",
                                       "Regina", "Sybil",  "Thea",  "Viola", "Wanda",  "Minna",  "Rosalie", "Hedwig"};
constexpr std::string_view kMen[] = {"Adrian",  "Bertram",  "Clemens", "Dietrich", "Edmund",  "Fritz",
                                     "Georg",   "Heinrich", "Igor",    "Jasper",   "Karl",    "Leopold",
                                     "Moritz",  "Nathan",   "Oliver",  "Pascal",   "Quentin", "Roland",
                                     "Sigmund", "Tobias",   "Ulrich",  "Vincent",  "Wendel",  "Ambrose"};
constexpr std::string_view kTowns[] = {
    "Alderby",   "Birkenau",    "Carrow",    "Dunmere",     "Eastwick",   "Fallowfield", "Greifen",  "Haverstad",
    "Ilmenau",   "Kestrel Bay", "Lindholm",  "Marrowgate",  "Nethervale", "Oakhurst",    "Penmarsh", "Quarrington",
    "Rosenberg", "Sandwick",    "Thornbury", "Upper Wells", "Velden",     "Westermoor"};
constexpr std::string_view kPlaces[] = {
    "the fish market", "the water mill", "the old harbour", "the parish hall",  "the coach house", "the tea room",
    "the light tower", "the apple barn", "the rope works",  "the town library", "the ferry house", "the stone quay",
    "the glass house", "the bell tower", "the corner shop", "the upper lock",   "the bee garden",  "the corn exchange"};
constexpr std::string_view kAdjectives[] = {"quiet",   "narrow",  "bright", "heavy",    "clever", "patient",
                                            "grey",    "rusty",   "wooden", "warm",     "soft",   "faded",
                                            "crooked", "smooth",  "dusty",  "friendly", "modest", "sleepy",
                                            "round",   "strange", "plain",  "sturdy",   "little", "proud"};
constexpr std::string_view kThings[] = {"lantern", "kettle",  "compass", "basket",   "mirror", "candle",
                                        "barrel",  "violin",  "ladder",  "teapot",   "saddle", "bucket",
                                        "trunk",   "whistle", "blanket", "umbrella", "clock",  "drum",
                                        "rope",    "stool",   "ink pot", "bell",     "wheel",  "map"};
constexpr std::string_view kFoods[] = {"bread",       "cheese",      "honey",     "plums",  "soup",     "walnuts",
                                       "smoked fish", "cabbage",     "barley",    "butter", "cherries", "onions",
                                       "tea",         "ginger cake", "mushrooms", "pears"};
constexpr std::string_view kAnimals[] = {"dog",  "cat", "goose", "heron",  "donkey", "goat",    "otter",    "raven",
                                         "pony", "owl", "hen",   "badger", "rabbit", "swallow", "hedgehog", "fox"};
constexpr std::string_view kJobs[] = {"baker",    "miller",  "carpenter", "weaver", "gardener", "shepherd",
                                      "printer",  "sailor",  "mason",     "tailor", "potter",   "clockmaker",
                                      "ferryman", "postman", "painter",   "cook"};
constexpr std::string_view kColours[] = {"red",   "blue",  "green",  "yellow", "white",
                                         "black", "brown", "orange", "purple"};
constexpr std::string_view kWeathers[] = {"rain",  "snow",    "fog",  "sunshine", "wind",
                                          "frost", "drizzle", "hail", "mist"};
constexpr std::string_view kTimes[] = {
    "in the morning",     "at noon",     "before sunrise", "after supper",      "toward evening",
    "late at night",      "on Saturday", "at low tide",    "after the harvest", "in the first week of spring",
    "when the bells rang"};
constexpr std::string_view kSeasons[] = {"spring", "summer", "autumn", "winter"};
constexpr std::string_view kCounts[] = {"two",   "three", "four", "five",    "six",
                                        "seven", "nine",  "ten",  "a dozen", "twenty"};
constexpr std::string_view kFeelings[] = {"content", "worried", "hopeful", "tired",
                                          "glad",    "curious", "calm",    "grateful"};
constexpr std::string_view kManners[] = {"slowly", "carefully", "quietly", "quickly", "gladly", "patiently", "gently"};
constexpr std::string_view kKin[] = {"brother", "sister", "mother",    "father",
                                     "uncle",   "cousin", "neighbour", "grandmother"};
constexpr std::string_view kMaterials[] = {"wood",  "iron",    "copper", "glass", "wool",
                                           "linen", "leather", "clay",   "tin"};
constexpr std::string_view kDirections[] = {"north", "south", "east", "west"};
constexpr std::string_view kTrees[] = {"oak", "birch", "pine", "willow", "elm", "beech", "maple", "chestnut", "poplar"};

struct Table {
  std::string_view slot;
  Words words;
};
constexpr Table kTables[] = {
    {"adj", kAdjectives}, {"thing", kThings},       {"food", kFoods},           {"animal", kAnimals},
    {"job", kJobs},       {"colour", kColours},     {"weather", kWeathers},     {"when", kTimes},
    {"season", kSeasons}, {"count", kCounts},       {"feeling", kFeelings},     {"manner", kManners},
    {"kin", kKin},        {"material", kMaterials}, {"direction", kDirections}, {"tree", kTrees}};

// The subjects. The first sentence always opens the paragraph; the others stay in this order.
constexpr std::string_view kMarket[] = {
    "{name} set out for {place} {when}, because the traders from {town} were expected.",
    "The first stall sold {food}, the second {food}, and the third only good advice.",
    "A {job} held up a {adj} {thing} and swore that it was made of real {material}.",
    "{He} asked for the price, laughed, and went on {manner}.",
    "Under the arcade somebody was roasting {food} over a small fire.",
    "{count} hens had escaped from a crate and walked about as if they owned the square.",
    "In the end {he} bought a {colour} scarf and some {food} for {his} {kin}.",
    "When the {weather} began, the awnings came down one after the other.",
    "The scales were wrong again, but everybody knew by how much.",
    "{name} carried the bags home and was {feeling} all the way."};
constexpr std::string_view kHarbour[] = {
    "{name} liked {place} best {when}, while the boats were still out.",
    "A {adj} {job} sat on a crate and mended a net without looking at it.",
    "The {weather} had come from the {direction}, as it always did in {season}.",
    "{He} counted {count} gulls on the roof and one {animal} below them.",
    "The ferry to {town} was late, and the captain did not say why.",
    "Someone had left a {adj} {thing} on the steps.",
    "{He} picked it up, turned it over and found no name on it.",
    "On the quay it smelled of tar, {food} and wet rope.",
    "Far out a {colour} sail moved {manner} along the horizon.",
    "Toward the end of the day {he} felt {feeling} and walked home along the wall."};
constexpr std::string_view kGarden[] = {
    "Behind {place} {name} had a garden that was longer than it was wide.",
    "The beans stood in {count} rows, and between them grew whatever wanted to grow.",
    "A {tree} gave shade to the bench and to a {adj} {animal}.",
    "{His} {kin} thought that the soil was too poor for anything but {food}.",
    "{He} dug it over {manner} and said nothing.",
    "After the {weather} the paths were soft, and {he} laid boards on them.",
    "A {animal} came through the hedge {when} and tried the best leaves.",
    "In {season} the whole wall was covered with {colour} flowers.",
    "People from {town} stopped at the fence and asked for cuttings.",
    "{name} gave them some, and a little {food} as well."};
constexpr std::string_view kRailway[] = {
    "The train to {town} left {when}, and {name} was the last to get on.",
    "{He} found a seat between a {job} and a basket of {food}.",
    "The windows were full of {weather}, so there was not much to see.",
    "A child in a {colour} coat asked {count} questions about tunnels.",
    "{name} answered {manner} and made up the parts that {he} did not know.",
    "Near a {adj} station they stopped for no reason at all.",
    "The guard walked along the track with a {thing} and came back without it.",
    "Somebody shared a piece of {food}, and after that everybody talked.",
    "They crossed the long bridge in the {direction} just before dark.",
    "When {he} got off, {he} was {feeling}, and {place} was only a short walk away."};
constexpr std::string_view kWorkshop[] = {
    "{name} had taken over the workshop beside {place} from {his} {kin}.",
    "It was a {adj} room that smelled of {material} and lamp oil.",
    "The tools hung on the wall in an order that nobody else understood.",
    "That week {he} was repairing a {thing} for a {job} from {town}.",
    "The old part was worn through, and no new one could be bought.",
    "So {he} made one out of {material}, and then a second one, because the first was too small.",
    "A {animal} slept on the warm side of the stove and was not disturbed by the hammer.",
    "{He} had learned that a thing which is done {manner} is done only once.",
    "The {job} came {when}, tried it, and paid with {food} and a nod.",
    "{name} swept the floor, put out the lamp and was {feeling}."};
constexpr std::string_view kLibrary[] = {
    "Every {season} {name} put the books of {place} in order.",
    "They came in boxes from {town}, mostly about {animal} breeding and the sea.",
    "One of them had been returned after {count} years with an apology and a pressed leaf.",
    "{He} wrote the titles on {colour} cards in a {adj} hand.",
    "A {job} wanted to know everything about {material}, and stayed until the evening.",
    "The {weather} drummed on the skylight, and nobody wished to leave.",
    "Between two pages {he} found a drawing of a {animal} with a {thing}.",
    "{His} {kin} brought {food} and tea and read aloud from a travel book.",
    "Then the reading room was quiet again, apart from the clock.",
    "{name} locked the door {when} and took one book home."};
constexpr std::string_view kMountain[] = {
    "{name} began the climb {when}, with {food} in one pocket and a map in the other.",
    "The path rose {manner} through {tree} woods and then over open stones.",
    "A {animal} watched from a rock and did not move.",
    "After {count} turns the roofs of {town} lay far below.",
    "The hut was kept by a {adj} {job} who spoke to few people.",
    "There was {food} on the table, and a {thing} above the door.",
    "In the night the {weather} came over the ridge from the {direction}.",
    "{He} lay awake, listened, and was {feeling}.",
    "By morning the whole valley was {colour} and perfectly still.",
    "{name} came down by the other side and reached {place} before dinner."};
constexpr std::string_view kLetter[] = {
    "A letter for {name} had been waiting at {place} since {season}.",
    "It came from {town}, and the stamp showed a {colour} {animal}.",
    "{His} {kin} had written it {manner}, in very small letters.",
    "There was news about the {job}, the bridge and the price of {food}.",
    "The roof had been mended, but the {thing} was still missing.",
    "{He} read the last page {count} times, because it was hard to believe.",
    "Then {he} looked for ink and a {adj} sheet of paper.",
    "The answer described the {weather}, the {tree} in the yard and the new neighbours.",
    "It said nothing about being {feeling}, but it could be read between the lines.",
    "{name} posted it {when}, and waited."};
constexpr std::string_view kBand[] = {"The band met at {place} {when}, and {name} brought the notes.",
                                      "There were {count} players that year, among them a {job} and his {kin}.",
                                      "The drum had been patched with {material} and sounded better than before.",
                                      "They played a {adj} march from {town}, rather too fast.",
                                      "Outside a {animal} joined in and could not be persuaded to stop.",
                                      "In the pause there was {food} and a long quarrel about the second verse.",
                                      "{He} settled it {manner} by leaving the verse out.",
                                      "A {colour} curtain moved across the street, and somebody clapped.",
                                      "When the {weather} began they simply played louder.",
                                      "{name} went home humming, {feeling} and out of breath."};
constexpr std::string_view kRiver[] = {"That {season} the river rose higher than {name} had ever seen it.",
                                       "First the meadow by {place} disappeared, then the lower path.",
                                       "The {job} rowed from door to door with {food} and lamp oil.",
                                       "{He} carried the chairs upstairs, and after them a {adj} {thing}.",
                                       "A {animal} had saved itself on a {tree} and complained all day.",
                                       "From {town} came {count} men with sandbags and good humour.",
                                       "The {weather} stopped {when}, and everyone looked to the {direction}.",
                                       "Slowly the {colour} line on the wall came out of the water again.",
                                       "{His} {kin} said that it had been worse before the dam.",
                                       "{name} was {feeling}, and hung the carpets over the fence."};
constexpr std::string_view kSchool[] = {
    "{name} taught the small children at {place} until the new teacher came.",
    "They learned the names of {count} trees and could soon tell {tree} from {tree}.",
    "A girl had brought a {animal} in a basket, and the lesson changed its subject.",
    "On the wall hung a map where {town} lay on the wrong side of the border.",
    "Why is the sea never full?",
    "{He} did not know, and said so, which pleased them very much.",
    "When the {weather} came, they moved the benches closer to the stove.",
    "Each of them drew a {adj} {thing} in {colour} chalk.",
    "At noon they ate {food}, and then there was a story.",
    "{name} was {feeling} when the last of them had been fetched."};
constexpr Words kSubjects[] = {kMarket,   kHarbour, kGarden, kRailway, kWorkshop, kLibrary,
                               kMountain, kLetter,  kBand,   kRiver,   kSchool};

struct Cast {
  std::string_view name, place, town;
  bool woman = false;
};

bool IsVowel(char c) { return std::string_view("aeiouAEIOU").find(c) != std::string_view::npos; }

// The word for a slot: drawn, unless the paragraph already has one for it.
std::string Word(std::string_view slot, const Cast& cast, SplitMix& random) {
  if (slot == "name") return std::string(cast.name);
  if (slot == "place") return std::string(cast.place);
  if (slot == "town") return std::string(cast.town);
  if (slot == "He") return cast.woman ? "She" : "He";
  if (slot == "he") return cast.woman ? "she" : "he";
  if (slot == "His") return cast.woman ? "Her" : "His";
  if (slot == "his") return cast.woman ? "her" : "his";
  for (const Table& table : kTables)
    if (table.slot == slot) return std::string(random.Pick(table.words));
  CHECK(false);
}

std::string Fill(std::string_view sentence, const Cast& cast, SplitMix& random) {
  std::string text;
  while (!sentence.empty()) {
    const size_t open = std::min(sentence.find('{'), sentence.size());
    text += sentence.substr(0, open);
    sentence.remove_prefix(open);
    if (sentence.empty()) break;
    const size_t close = sentence.find('}');
    const std::string word = Word(sentence.substr(1, close - 1), cast, random);
    const bool article = text == "A " || (text.size() >= 3 && text.compare(text.size() - 3, 3, " a ") == 0);
    if (article && IsVowel(word[0])) text.insert(text.size() - 1, "n");
    text += word;
    sentence.remove_prefix(close + 1);
  }
  if (text[0] >= 'a' && text[0] <= 'z') text[0] = static_cast<char>(text[0] - 'a' + 'A');
  return text;
}

// Draws `count` different numbers from [1, size), ascending.
std::vector<size_t> Choose(size_t count, size_t size, SplitMix& random) {
  std::vector<size_t> all(size - 1);
  std::iota(all.begin(), all.end(), size_t{1});
  for (size_t i = 0; i < count; ++i) std::swap(all[i], all[i + random.Below(all.size() - i)]);
  all.resize(count);
  std::sort(all.begin(), all.end());
  return all;
}

}  // namespace

std::vector<std::string> StoryWriter::Paragraph() {
  size_t subject = random_.Below(std::size(kSubjects));
  if (subject == last_subject_) subject = (subject + 1) % std::size(kSubjects);
  last_subject_ = subject;
  const Words sentences = kSubjects[subject];
  Cast cast;
  cast.woman = random_.Below(2) == 0;
  cast.name = cast.woman ? random_.Pick(kWomen) : random_.Pick(kMen);
  cast.place = random_.Pick(kPlaces);
  cast.town = random_.Pick(kTowns);
  std::vector<std::string> paragraph = {Fill(sentences[0], cast, random_)};
  for (const size_t i : Choose(random_.Between(3, 7), sentences.size(), random_))
    paragraph.push_back(Fill(sentences[i], cast, random_));
  return paragraph;
}

std::vector<std::string_view> StoryNouns() {
  std::vector<std::string_view> nouns;
  for (const Words words : {Words(kThings), Words(kFoods), Words(kAnimals), Words(kJobs)})
    for (const std::string_view word : words)
      if (word.find(' ') == std::string_view::npos) nouns.push_back(word);
  return nouns;
}

}  // namespace infinigen
