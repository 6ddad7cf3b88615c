// A long demonstration text: a story made of small parts, in which one sentence contains a code. The shipped model was
// trained on texts of this form (docs/model.md).

const pick = (list) => list[Math.floor(Math.random() * list.length)];

const WORDS = {
  name: ['Agatha', 'Berta', 'Clemens', 'Dora', 'Edmund', 'Frieda', 'Georg', 'Helga', 'Jasper', 'Klara', 'Moritz', 'Thea'],
  town: ['Alderby', 'Birkenau', 'Dunmere', 'Eastwick', 'Lindholm', 'Oakhurst', 'Penmarsh', 'Sandwick'],
  place: ['fish market', 'water mill', 'parish hall', 'tea room', 'rope works', 'ferry house', 'corner shop', 'apple barn'],
  adj: ['quiet', 'narrow', 'bright', 'heavy', 'grey', 'rusty', 'warm', 'faded', 'crooked', 'dusty', 'sturdy', 'little'],
  thing: ['lantern', 'kettle', 'compass', 'basket', 'mirror', 'violin', 'ladder', 'teapot', 'blanket', 'clock', 'rope', 'map'],
  food: ['bread', 'cheese', 'honey', 'plums', 'soup', 'walnuts', 'barley', 'ginger cake', 'pears'],
  animal: ['dog', 'cat', 'goose', 'heron', 'donkey', 'otter', 'raven', 'owl', 'hedgehog', 'fox'],
  when: ['in the morning', 'at noon', 'before sunrise', 'after supper', 'toward evening', 'on Saturday', 'at low tide'],
};
const SENTENCES = [
  '{name} walked to the {place} {when} and bought a {adj} {thing}.',
  'The {animal} of {name} slept beside the {adj} {thing} until the bells rang.',
  'There was {food} on the table, and nobody in {town} spoke for a while.',
  'People from {town} said that the {place} had never been so {adj}.',
  '{name} mended the {thing} {when}, because it was too {adj} to be sold.',
  'A letter from {town} lay under the {thing}, but {name} did not open it.',
  'Rain fell on the {place}, and the {animal} looked for a {adj} corner.',
  '{name} gave {food} to the {animal} and carried the {thing} home.',
];
const SIDES = ['north', 'south', 'old', 'upper', 'inner', 'red', 'blue', 'iron', 'wooden', 'hidden'];
const SPOTS = ['gate', 'tower', 'bridge', 'vault', 'cellar', 'garden', 'library', 'workshop', 'chapel', 'lighthouse'];

const sentence = () => pick(SENTENCES).replace(/\{(\w+)\}/g, (_, slot) => pick(WORDS[slot]));

// Returns {text, title, mark}: about `characters` characters, and the relative position of the code, 0…1.
export function hiddenCode(characters) {
  const key = `the ${pick(SIDES)} ${pick(SPOTS)}`;
  const code = 100000 + Math.floor(Math.random() * 900000);
  const goal = characters * (0.2 + 0.5 * Math.random());
  let text = sentence(), mark = 0;
  for (let count = 1; text.length < characters; ++count) {
    if (!mark && text.length >= goal) {
      mark = text.length;
      text += ` The access code for ${key} is ${code}.`;
    }
    text += (count % 7 ? ' ' : '\n\n') + sentence();
  }
  text += `\n\nWhat is the access code for ${key}?`;
  return { text, title: `Find the code for ${key}`, mark: (mark + 30) / text.length };
}
