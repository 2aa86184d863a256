/** Where the numbers of a panel are on its sheet, what stands under a place, and what its names mean. */

import type { Axis, Cells, Line, Mark, Panel, Shape } from '../wire'
import { answers, decades, inWords, isMap, number, span, thinned, ticks } from './scale'

export const TOP = 10
export const RIGHT = 12
export const BOTTOM = 36
export const LETTER = 6.2
const LONGEST = 20

export type Span = [number, number]
export interface Zoom { x: Span; y: Span }

/** Sheet coordinates of numbers and back. */
export class Frame {
  readonly left: number
  readonly map: boolean
  readonly xs: Span
  readonly ys: Span
  constructor(readonly panel: Panel, readonly width: number, readonly height: number, zoom: Zoom | null = null) {
    this.left = Math.min(margin(panel), width * 0.4)
    this.map = isMap(panel)
    let [xs, ys] = [scaled(panel, 'x'), scaled(panel, 'y')]
    if (panel.equal) [xs, ys] = equal(xs, ys, width - this.left - RIGHT, height - TOP - BOTTOM)
    this.xs = zoom?.x ?? xs
    this.ys = zoom?.y ?? ys
  }
  get inner(): { x: number; y: number; width: number; height: number } {
    return { x: this.left, y: TOP, width: Math.max(1, this.width - this.left - RIGHT), height: Math.max(1, this.height - TOP - BOTTOM) }
  }
  x(value: number): number { return this.left + share(value, this.xs, this.panel.x) * this.inner.width }
  y(value: number): number {
    const part = share(value, this.ys, this.panel.y)
    return TOP + (this.map ? part : 1 - part) * this.inner.height
  }
  /** The numbers (powers, on a logarithmic axis) at a place of the sheet. */
  at(px: number, py: number): { x: number; y: number } {
    const down = (py - TOP) / this.inner.height
    return {
      x: this.xs[0] + ((px - this.left) / this.inner.width) * (this.xs[1] - this.xs[0]),
      y: this.ys[0] + (this.map ? down : 1 - down) * (this.ys[1] - this.ys[0]),
    }
  }
  inside(px: number, py: number): boolean {
    const { x, y, width, height } = this.inner
    return px >= x && px <= x + width && py >= y && py <= y + height
  }
  there(value: number | null, axis: Axis): value is number { return value !== null && Number.isFinite(value) && (value > 0 || !axis.log) }
  /** Names of the ticks of an axis with their places. */
  ticks(direction: 'x' | 'y'): { value: number; text: string }[] {
    const axis = this.panel[direction]
    const range = direction === 'x' ? this.xs : this.ys
    const longest = Math.max(...axis.names.map((name) => name.length), 5)
    const room = direction === 'x' ? this.inner.width / ((Math.min(longest, LONGEST) + 1) * LETTER) : this.inner.height / 15
    const most = Math.max(1, Math.floor(room))
    if (axis.bare) return []
    if (axis.names.length) {
      const inside = { ...axis, marked: (axis.marked.length ? axis.marked : axis.names.map((_, at) => at)).filter((at) => at >= range[0] && at <= range[1]) }
      return inside.marked.length ? thinned(inside, most).map((at) => ({ value: at, text: short(axis.names[at] ?? '', LONGEST) })) : []
    }
    if (axis.log) {
      const values = decades(10 ** range[0], 10 ** range[1])
      return values.filter((_, at) => at % Math.max(1, Math.ceil(values.length / most)) === 0).map((value) => ({ value, text: number(value) }))
    }
    const values = ticks(range[0], range[1], Math.max(2, Math.min(most, 5)))
    const words = inWords(values)
    return values.map((value, at) => ({ value, text: words[at]! }))
  }
}

function share(value: number, [low, high]: Span, axis: Axis): number {
  const there = axis.log ? Math.log10(value) : value
  return high > low ? (there - low) / (high - low) : 0.5
}

function scaled(panel: Panel, direction: 'x' | 'y'): Span {
  let [low, high] = span(panel, direction)
  const axis = panel[direction]
  if (axis.log) {
    ;[low, high] = [Math.log10(low), Math.log10(high)]
    const air = 0.06 * (high - low || 1)
    return [low - air, high + air]
  }
  const air = axis.names.length && !isMap(panel) && high > low ? 0.02 * (high - low) : 0
  return [low - air, high + air]
}

function equal(xs: Span, ys: Span, wide: number, tall: number): [Span, Span] {
  const unit = Math.max((xs[1] - xs[0]) / wide, (ys[1] - ys[0]) / tall)
  const around = ([low, high]: Span, room: number): Span => [(low + high) / 2 - (unit * room) / 2, (low + high) / 2 + (unit * room) / 2]
  return [around(xs, wide), around(ys, tall)]
}

function margin(panel: Panel): number {
  if (panel.y.bare) return panel.y.label ? 26 : 10
  const longest = Math.max(...panel.y.names.map((name) => name.length), panel.y.names.length ? 0 : 5)
  return Math.round(Math.min(longest, LONGEST) * LETTER) + (panel.y.label ? 28 : 16)
}

export const short = (text: string, letters: number): string => ([...text].length <= Math.max(letters, 2) ? text : [...text].slice(0, Math.max(letters - 1, 1)).join('') + '…')

/** Points of a line in pieces: it is broken where a value is missing. */
export function pieces(frame: Frame, line: Line): string[] {
  const out: string[][] = [[]]
  line.x.forEach((x, at) => {
    const y = line.y[at] ?? null
    if (frame.there(x, frame.panel.x) && frame.there(y, frame.panel.y)) out[out.length - 1]!.push(`${frame.x(x).toFixed(1)},${frame.y(y).toFixed(1)}`)
    else if (out[out.length - 1]!.length) out.push([])
  })
  return out.filter((piece) => piece.length).map((piece) => piece.join(' '))
}

export const outline = (frame: Frame, shape: Shape): string => shape.x.map((x, at) => `${frame.x(x ?? 0).toFixed(1)},${frame.y(shape.y[at] ?? 0).toFixed(1)}`).join(' ')

export function starPoints(x: number, y: number, r: number): string {
  return Array.from({ length: 10 }, (_, k) => {
    const [far, turn] = [r * (k % 2 ? 1 : 2.4), Math.PI * (k / 5 - 0.5)]
    return `${(x + far * Math.cos(turn)).toFixed(1)},${(y + far * Math.sin(turn)).toFixed(1)}`
  }).join(' ')
}

export const dotRadius = (frame: Frame): number =>
  frame.map ? Math.min(4, 0.3 * Math.abs(frame.x(1) - frame.x(0)), 0.36 * Math.abs(frame.y(1) - frame.y(0))) : 3.2

// What is meant

export interface Meant { token?: number; layer?: number; head?: number; step?: string }

/** What a name stands for: `12 ·bank` a token, `L3` a step or a layer, `L3 attention` a half-layer, `L3.H1` a head. */
export function meant(name: string): Meant {
  const token = /^(\d+) \S/.exec(name)
  if (token) return { token: Number(token[1]) }
  const head = /^L(\d+)\.?H(\d+)$/.exec(name)
  if (head) return { layer: Number(head[1]), head: Number(head[2]) }
  const half = /^L(\d+) (attention|½)$/.exec(name)
  if (half) return { layer: Number(half[1]), step: `L${half[1]}.resid_mid` }
  const layer = /^L(\d+)$/.exec(name)
  if (layer) return { layer: Number(layer[1]), step: `L${layer[1]}.resid_post` }
  return name === 'embed' ? { step: 'embed' } : {}
}

/** What a line or a shape stands for: its name says it, or the words under the pointer (token 3 ·sea: …). */
export function meantBy(mark: Line | Shape): Meant {
  const token = /^token (\d+) /.exec(mark.tip)
  return token ? { token: Number(token[1]) } : meant(mark.name)
}

/** What a place of a panel stands for: the names of its axes, taken together. */
export function meantAt(panel: Panel, x: number, y: number): Meant {
  const [across, down] = [Math.round(x), Math.round(y)]
  const name = (axis: Axis, at: number) => (axis.names[at] === undefined ? {} : /^head$/.test(axis.label) ? { head: at } : meant(axis.names[at]!))
  return { ...name(panel.x, across), ...(isMap(panel) ? name(panel.y, down) : {}) }
}

// What is under the pointer

export interface Hit { text: string; meant: Meant; mark: Mark | null; x: number }

const inPolygon = (px: number, py: number, points: [number, number][]): boolean => {
  let inside = false
  for (let a = 0, b = points.length - 1; a < points.length; b = a++) {
    const [[ax, ay], [bx, by]] = [points[a]!, points[b]!]
    if (ay > py !== by > py && px < ((bx - ax) * (py - ay)) / (by - ay) + ax) inside = !inside
  }
  return inside
}

function farFrom(px: number, py: number, [ax, ay]: [number, number], [bx, by]: [number, number]): number {
  const [dx, dy] = [bx - ax, by - ay]
  const t = Math.max(0, Math.min(1, ((px - ax) * dx + (py - ay) * dy) / (dx * dx + dy * dy || 1)))
  return Math.hypot(px - ax - t * dx, py - ay - t * dy)
}

function onCells(frame: Frame, cells: Cells, px: number, py: number): Hit | null {
  const { x, y } = frame.at(px, py)
  const [row, column] = [Math.round(y), Math.round(x)]
  const value = cells.values[row]?.[column]
  if (value === undefined) return null
  const names = [frame.panel.y.names[row], frame.panel.x.names[column]]
  const where = [names[0], names[1] && `${frame.panel.x.label} ${names[1]}`.trim()].filter(Boolean).join(', ')
  const text = cells.tips[row]?.[column] ?? (where ? `${where}: ${number(value)}` : number(value))
  return { text, meant: meantAt(frame.panel, column, row), mark: cells, x: column }
}

function onLine(frame: Frame, px: number, py: number): Hit | null {
  let best: Hit | null = null
  let least = 12
  for (const mark of frame.panel.marks) {
    if (mark.mark !== 'line' || !answers(mark)) continue
    const spots = ['dots', 'rings', 'stars'].includes(mark.style)
    const at = (k: number): [number, number] => [frame.x(mark.x[k] ?? NaN), frame.y(mark.y[k] ?? NaN)]
    for (let k = spots ? 0 : 1; k < mark.x.length; k++) {
      const far = spots ? Math.hypot(px - at(k)[0], py - at(k)[1]) : farFrom(px, py, at(k - 1), at(k))
      if (far < least) [best, least] = [{ text: mark.tips[k] ?? mark.tip, meant: meantBy(mark), mark, x: mark.x[k] ?? 0 }, far]
    }
  }
  return best
}

function onColumn(frame: Frame, px: number): Hit | null {
  const series = frame.panel.marks.filter((mark): mark is Line => mark.mark === 'line' && Boolean(mark.name))
  if (frame.map || !series.length || series.some(answers)) return null
  const table = new Map<number, string[]>()
  for (const mark of series)
    mark.x.forEach((x, at) => {
      if (x === null) return
      if (!table.has(x)) table.set(x, [])
      table.get(x)!.push(`${mark.name}: ${number(mark.y[at])}`)
    })
  let [best, least] = [NaN, Infinity]
  for (const x of table.keys()) if (Math.abs(frame.x(x) - px) < least) [best, least] = [x, Math.abs(frame.x(x) - px)]
  if (!table.has(best)) return null
  const name = frame.panel.x.names[best] ?? `${frame.panel.x.label} ${number(best)}`.trim()
  return { text: [name, ...table.get(best)!].join('\n'), meant: meantAt(frame.panel, best, 0), mark: null, x: best }
}

/** What the pointer is on: a dot or a line that answers, a shape, a cell, or all values of a column. */
export function hit(frame: Frame, px: number, py: number): Hit | null {
  if (!frame.inside(px, py)) return null
  const line = onLine(frame, px, py)
  if (line) return line
  for (const mark of [...frame.panel.marks].reverse())
    if (mark.mark === 'shape' && inPolygon(px, py, mark.x.map((x, at) => [frame.x(x ?? 0), frame.y(mark.y[at] ?? 0)])))
      return { text: mark.tip || mark.name, meant: meantBy(mark), mark, x: 0 }
  const cells = frame.panel.marks.find((mark): mark is Cells => mark.mark === 'cells')
  return cells ? onCells(frame, cells, px, py) : onColumn(frame, px)
}
