/** Widths of the texts in a panel, which are 11 pixels high. They are estimated, because a panel is laid out before its texts are drawn. */

const WIDE = /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Hangul}\u3000-\u303f\uff00-\uffef]/u
const BROAD = /[mwMWGOQ@%→←↔…−+=<>×≤≥—]/u
const NARROW = /[iljtfrI1.,:;'|!()[\]\s]/u

const letterWidth = (letter: string): number => (WIDE.test(letter) ? 11.2 : BROAD.test(letter) ? 10 : NARROW.test(letter) ? 4.6 : /\p{Lu}/u.test(letter) ? 8 : 6.6)

/** An upper estimate of the width of a text in pixels. */
export const textWidth = (text: string): number => [...text].reduce((width, letter) => width + letterWidth(letter), 0)

/** The text, shortened with an ellipsis if it is wider than `width` pixels. */
export function fitText(text: string, width: number): string {
  if (textWidth(text) <= width) return text
  const letters = [...text]
  while (letters.length > 1 && textWidth(letters.join('')) + letterWidth('…') > width) letters.pop()
  return `${letters.join('')}…`
}
