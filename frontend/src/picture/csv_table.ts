/** Numbers as CSV, with their provenance in comment lines at the top. */

import type { Axis } from '../api'
import type { RenderedPanel } from './render_panel'

export interface Table { columns: string[]; rows: Iterable<(string | number)[]> }

const FORMULA_START = /^[=+\-@\t\r]/

/** A cell, quoted if necessary. A text that a spreadsheet would run as a formula gets a leading apostrophe. */
export function csvCell(value: string | number): string {
  if (typeof value === 'number') return Number.isFinite(value) ? String(value) : ''
  const text = FORMULA_START.test(value) ? `'${value}` : value
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text
}

export function toCsv({ columns, rows }: Table, provenance: Record<string, unknown>): string {
  const comments = Object.entries(provenance).map(([name, value]) => `# ${name}: ${String(typeof value === 'object' ? JSON.stringify(value) : value).replaceAll(/\s+/g, ' ')}`)
  return [...comments, columns.map(csvCell).join(','), ...Array.from(rows, (row) => row.map(csvCell).join(','))].join('\n') + '\n'
}

/** A query × key map: one row per pair. */
export function* pairRows(values: ArrayLike<number>, queries: number, keys: number, tokens: string[]): Generator<(string | number)[]> {
  for (let query = 0; query < queries; query++)
    for (let key = 0; key < keys; key++) yield [query, tokens[query] ?? '', key, tokens[key] ?? '', values[query * keys + key]!]
}

/** Points of tokens: one row per step and token. */
export function* pointRows(points: ArrayLike<number>, steps: string[], tokens: string[]): Generator<(string | number)[]> {
  for (const [stepIndex, step] of steps.entries())
    for (const [position, token] of tokens.entries()) {
      const offset = 3 * (stepIndex * tokens.length + position)
      yield [step, position, token, points[offset]!, points[offset + 1]!, points[offset + 2]!]
    }
}

/** A panel: one row per point of a line or a shape, per cell, and per label. */
export function* panelRows({ marks, x, y }: RenderedPanel): Generator<(string | number)[]> {
  const coordinate = (axis: Axis<string>, value: number): string | number => axis.names[value] ?? value
  for (const mark of marks) {
    if (mark.mark === 'cells') {
      for (const [row, values] of mark.values.entries())
        for (const [column, value] of values.entries()) yield ['cells', mark.name ?? '', coordinate(x, column), coordinate(y, row), value ?? NaN]
    } else if (mark.mark === 'label') yield ['label', mark.text, mark.x, mark.y, NaN]
    else for (const [index, value] of mark.x.entries()) yield [mark.mark, mark.name, value === null ? NaN : Number.isInteger(value) ? coordinate(x, value) : value, mark.y[index] ?? NaN, NaN]
  }
}
