/** Token names on the axes of a map, and the sample of tokens that a long text needs. */

export const MAX_NAMED = 64
/** Width of a letter of the fixed-width font, at most .61 of its height of 11.5 pixels. Chinese letters have twice this width. */
const LETTER_WIDTH = 7
const WIDE = /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Hangul}\u3000-\u303f\uff00-\uffef]/u
const MAX_LETTERS = 12
/** The smallest cell whose token name is readable. */
export const SMALLEST_CELL = 10
const LARGEST_CELL = 26
/** Room for the bars of a row and of a column. */
export const BAR_LENGTH = 40

/** All positions of a text, or 64 at even distances that include the first (often an attention sink) and the given ones. */
export function axisPositions(count: number, included: number[] = []): number[] {
  if (count <= MAX_NAMED) return Array.from({ length: count }, (_, position) => position)
  const positions = new Set(Array.from({ length: MAX_NAMED }, (_, k) => Math.round((k * (count - 1)) / (MAX_NAMED - 1))))
  const fixed = new Set([0, ...included].filter((position) => position < count))
  for (const position of fixed) {
    if (positions.has(position)) continue
    const replaceable = [...positions].filter((other) => !fixed.has(other))
    positions.delete(replaceable.reduce((nearest, other) => (Math.abs(other - position) < Math.abs(nearest - position) ? other : nearest)))
    positions.add(position)
  }
  return [...positions].sort((a, b) => a - b)
}

/** The cells of a sample of rows and columns. */
export function sampleMap(values: Float32Array, columns: number, rows: number[], keys: number[]): Float32Array {
  return Float32Array.from(rows.flatMap((row) => keys.map((key) => values[row * columns + key]!)))
}

export const axisName = (text: string): string => ([...text].length > MAX_LETTERS ? [...text].slice(0, MAX_LETTERS - 1).join('') + '…' : text)

const nameWidth = (name: string): number => [...axisName(name)].reduce((width, letter) => width + (WIDE.test(letter) ? 2 : 1) * LETTER_WIDTH, 0)

export interface MapSize { cell: number; labels: number; width: number; height: number }

/** The size of a named map in pixels: cells fill the room, but stay readable. A map that is wider than its room scrolls. */
export function mapSize(names: string[], rows: number, columns: number, room: number): MapSize {
  const labels = Math.ceil(Math.max(LETTER_WIDTH, ...names.map(nameWidth))) + 8
  const cell = Math.max(SMALLEST_CELL, Math.min(LARGEST_CELL, (room - labels - BAR_LENGTH - 6) / columns))
  return { cell, labels, width: labels + cell * columns + BAR_LENGTH + 6, height: labels + cell * rows + BAR_LENGTH + 6 }
}

/** The room that a map of these names needs to be readable. */
export const smallestMap = (names: string[]): number => {
  const count = Math.min(MAX_NAMED, names.length)
  return mapSize(names, count, count, 0).width
}
