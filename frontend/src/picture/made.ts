/** Panels that the page makes itself, in the same words as those that come over the wire. */

import type { Axis, Cells, Mark, Panel } from '../wire'

export const axis = (said: Partial<Axis> = {}): Axis => ({ label: '', names: [], marked: [], log: false, bare: false, low: null, high: null, ...said })

export const panel = (title: string, marks: Mark[], said: Partial<Panel> = {}): Panel => ({
  title, about: title, marks, x: axis(), y: axis(), columns: 1, height: 1, equal: false, ...said,
})

export const line = (name: string, y: number[], colour = 'first', style = 'solid', x = y.map((_, at) => at)): Mark => ({ mark: 'line', name, x, y, colour, style, tip: '', tips: [] })

export const cells = (values: number[][], low: number, high: number, centre = 0): Cells => ({ mark: 'cells', values, texts: [], tips: [], marked: [], low, high, centre })

/** Bars from 0, the largest on top, in two colours for the two signs. */
export function bars(title: string, rows: { name: string; value: number }[], label: string, about = title): Panel {
  const marks = rows.map(({ name, value }, at): Mark => {
    const y = rows.length - 1 - at
    return { mark: 'shape', name: '', x: [0, value, value, 0], y: [y - 0.36, y - 0.36, y + 0.36, y + 0.36], colour: value >= 0 ? 'first' : 'second', opacity: 0.85, tip: `${name}: ${value.toPrecision(3)}` }
  })
  const names = rows.map(({ name }) => name).reverse()
  return panel(title, marks, { about, x: axis({ label }), y: axis({ names, low: -0.6, high: rows.length - 0.4 }), height: Math.max(0.55, (rows.length * 18 + 50) / 236) })
}
