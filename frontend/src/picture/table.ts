/** Numbers of a panel as a table that any program reads, what they are of in the lines before it. */

import type { Axis, Panel } from '../wire'

export interface Table { columns: string[]; rows: Iterable<(string | number)[]> }

const LIKE_A_FORMULA = /^[=+\-@\t\r]/

/** One cell: quoted where it must be; a token that a spreadsheet would compute is marked as text. */
export function cell(value: string | number): string {
  if (typeof value === 'number') return Number.isFinite(value) ? String(value) : ''
  const text = LIKE_A_FORMULA.test(value) ? `'${value}` : value
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text
}

export function csv({ columns, rows }: Table, provenance: Record<string, unknown>): string {
  const told = Object.entries(provenance).map(([name, value]) => `# ${name}: ${String(typeof value === 'object' ? JSON.stringify(value) : value).replaceAll(/\s+/g, ' ')}`)
  return [...told, columns.map(cell).join(','), ...Array.from(rows, (row) => row.map(cell).join(','))].join('\n') + '\n'
}

/** A map of queries by keys, a line a pair. */
export function* ofPairs(values: ArrayLike<number>, rows: number, columns: number, words: string[]): Generator<(string | number)[]> {
  for (let query = 0; query < rows; query++)
    for (let key = 0; key < columns; key++) yield [query, words[query] ?? '', key, words[key] ?? '', values[query * columns + key]!]
}

/** Places of tokens at every step, a line a token and step. */
export function* ofPlaces(points: ArrayLike<number>, steps: string[], words: string[]): Generator<(string | number)[]> {
  for (const [at, step] of steps.entries())
    for (const [token, word] of words.entries()) {
      const first = 3 * (at * words.length + token)
      yield [step, token, word, points[first]!, points[first + 1]!, points[first + 2]!]
    }
}

/** What a panel draws, a line a point: of lines and shapes their places, of cells row, column and value, of words where they stand. */
export function* ofPanel({ marks, x, y }: Panel): Generator<(string | number)[]> {
  const named = (axis: Axis, at: number): string | number => axis.names[at] ?? at
  for (const mark of marks) {
    if (mark.mark === 'cells') {
      for (const [row, values] of mark.values.entries())
        for (const [column, value] of values.entries()) yield ['cells', mark.name ?? '', named(x, column), named(y, row), value ?? NaN]
    } else if (mark.mark === 'word') yield ['word', mark.text, mark.x, mark.y, NaN]
    else for (const [at, place] of mark.x.entries()) yield [mark.mark, mark.name, place === null ? NaN : Number.isInteger(place) ? named(x, place) : place, mark.y[at] ?? NaN, NaN]
  }
}
