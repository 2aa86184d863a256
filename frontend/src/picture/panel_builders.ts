/** Builders for panels that the page makes itself. */

import type { Axis, Cells, Line, Mark, Panel } from '../api'

export const makeAxis = (options: Partial<Axis> = {}): Axis => ({ label: '', names: [], marked: [], log: false, bare: false, low: null, high: null, ...options })

export const makePanel = (title: string, marks: Mark[], options: Partial<Panel> = {}): Panel => ({
  title, about: title, marks, x: makeAxis(), y: makeAxis(), columns: 1, height: 1, equal: false, name: '', ...options,
})

export const makeLine = (name: string, y: number[], colour = 'first', style = 'solid', x = y.map((_, index) => index)): Line => ({ mark: 'line', name, x, y, colour, style, tip: '', tips: [] })

export const makeCells = (values: number[][], low: number, high: number, centre = 0): Cells => ({ mark: 'cells', values, texts: [], tips: [], marked: [], low, high, centre })

/** Horizontal bars, in the given order from the top. The colour shows the sign. */
export function barPanel(title: string, rows: { name: string; value: number }[], label: string, about = title): Panel {
  const marks = rows.map(({ name, value }, index): Mark => {
    const y = rows.length - 1 - index
    return { mark: 'shape', name: '', x: [0, value, value, 0], y: [y - 0.36, y - 0.36, y + 0.36, y + 0.36], colour: value >= 0 ? 'first' : 'second', opacity: 0.85, tip: `${name}: ${value.toPrecision(3)}` }
  })
  const names = rows.map(({ name }) => name).reverse()
  return makePanel(title, marks, { about, x: makeAxis({ label }), y: makeAxis({ names, low: -0.6, high: rows.length - 0.4 }), height: Math.max(0.55, (rows.length * 18 + 50) / 236) })
}
