/** Numbers of a panel as a table that any program reads, what they are of in the lines before it. */

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
