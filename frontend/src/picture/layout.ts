/** Where the values of a panel lie in pixels, and what lies under the pointer. */

import type { Cells, Line, Shape } from '../api'
import type { RenderedAxis, RenderedMark, RenderedPanel } from './render_panel'
import { formatNumber, formatTicks, hasTip, isMap, logTicks, roundTicks, thinTicks, valueRange } from './scale'
import type { Selection } from './selection'
import { fitText, textWidth } from './text_width'

export const TOP = 10
export const RIGHT = 12
export const BOTTOM = 36
export const LETTER_WIDTH = 6.2
/** A narrower panel, such as that of a phone, leaves more of its width to the names of rows. */
const NARROW = 420
/** Names of rows have more room than names of columns. */
const MAX_NAME_LETTERS = { x: 20, y: 34 }

export type Range = [number, number]
export interface Zoom { x: Range; y: Range }

/** Converts values to pixels and back. */
export class Frame {
  readonly left: number
  readonly isMap: boolean
  readonly xs: Range
  readonly ys: Range
  constructor(readonly panel: RenderedPanel, readonly width: number, readonly height: number, zoom: Zoom | null = null) {
    this.left = Math.min(leftMargin(panel), width * (width < NARROW ? 0.5 : 0.4))
    this.isMap = isMap(panel)
    let [xs, ys] = [axisRange(panel, 'x'), axisRange(panel, 'y')]
    if (panel.equal) [xs, ys] = withEqualUnits(xs, ys, width - this.left - RIGHT, height - TOP - BOTTOM)
    this.xs = zoom?.x ?? xs
    this.ys = zoom?.y ?? ys
  }
  get inner(): { x: number; y: number; width: number; height: number } {
    return { x: this.left, y: TOP, width: Math.max(1, this.width - this.left - RIGHT), height: Math.max(1, this.height - TOP - BOTTOM) }
  }
  x(value: number): number { return this.left + axisFraction(value, this.xs, this.panel.x) * this.inner.width }
  y(value: number): number {
    const fraction = axisFraction(value, this.ys, this.panel.y)
    return TOP + (this.isMap ? fraction : 1 - fraction) * this.inner.height
  }
  /** The values (exponents, on a logarithmic axis) at a position in pixels. */
  invert(px: number, py: number): { x: number; y: number } {
    const fraction = (py - TOP) / this.inner.height
    return {
      x: this.xs[0] + ((px - this.left) / this.inner.width) * (this.xs[1] - this.xs[0]),
      y: this.ys[0] + (this.isMap ? fraction : 1 - fraction) * (this.ys[1] - this.ys[0]),
    }
  }
  contains(px: number, py: number): boolean {
    const { x, y, width, height } = this.inner
    return px >= x && px <= x + width && py >= y && py <= y + height
  }
  isDrawable(value: number | null, axis: RenderedAxis): value is number { return value !== null && Number.isFinite(value) && (value > 0 || !axis.log) }
  /** Values and labels of the ticks of an axis. */
  ticks(direction: 'x' | 'y'): { value: number; text: string }[] {
    const axis = this.panel[direction]
    const range = direction === 'x' ? this.xs : this.ys
    const widest = longestWidth(axis.names, direction)
    const room = direction === 'x' ? this.inner.width / (widest + LETTER_WIDTH) : this.inner.height / 15
    const limit = Math.max(1, Math.floor(room))
    const nameWidth = direction === 'x' ? this.width : this.left - nameMargin(this.panel) + 8
    if (axis.bare) return []
    if (axis.names.length) {
      const inside = { ...axis, marked: (axis.marked.length ? axis.marked : axis.names.map((_, index) => index)).filter((index) => index >= range[0] && index <= range[1]) }
      return inside.marked.length ? thinTicks(inside, limit).map((index) => ({ value: index, text: fitText(truncate(axis.names[index] ?? '', MAX_NAME_LETTERS[direction]), nameWidth) })) : []
    }
    if (axis.log) {
      const values = logTicks(10 ** range[0], 10 ** range[1])
      return values.filter((_, index) => index % Math.max(1, Math.ceil(values.length / limit)) === 0).map((value) => ({ value, text: formatNumber(value) }))
    }
    const values = roundTicks(range[0], range[1], Math.max(2, Math.min(limit, 5)))
    const texts = formatTicks(values)
    return values.map((value, index) => ({ value, text: texts[index]! }))
  }
}

function axisFraction(value: number, [low, high]: Range, axis: RenderedAxis): number {
  const scaled = axis.log ? Math.log10(value) : value
  return high > low ? (scaled - low) / (high - low) : 0.5
}

function axisRange(panel: RenderedPanel, direction: 'x' | 'y'): Range {
  let [low, high] = valueRange(panel, direction)
  const axis = panel[direction]
  if (axis.log) {
    ;[low, high] = [Math.log10(low), Math.log10(high)]
    const padding = 0.06 * (high - low || 1)
    return [low - padding, high + padding]
  }
  const padding = axis.names.length && !isMap(panel) && high > low ? 0.02 * (high - low) : 0
  return [low - padding, high + padding]
}

function withEqualUnits(xs: Range, ys: Range, width: number, height: number): [Range, Range] {
  const unit = Math.max((xs[1] - xs[0]) / width, (ys[1] - ys[0]) / height)
  const widen = ([low, high]: Range, room: number): Range => [(low + high) / 2 - (unit * room) / 2, (low + high) / 2 + (unit * room) / 2]
  return [widen(xs, width), widen(ys, height)]
}

function leftMargin(panel: RenderedPanel): number {
  if (panel.y.bare) return panel.y.label ? 26 : 10
  return Math.round(longestWidth(panel.y.names, 'y')) + nameMargin(panel)
}

/** The width of the longest name, or of a number if an axis has no names. */
const longestWidth = (names: string[], direction: 'x' | 'y'): number => (names.length ? Math.max(...names.map((name) => textWidth(truncate(name, MAX_NAME_LETTERS[direction])))) : 5 * LETTER_WIDTH)
/** The space to the left of the names and between them and the axis. */
const nameMargin = (panel: RenderedPanel): number => (panel.y.label ? 28 : 16)

export const truncate = (text: string, limit: number): string => ([...text].length <= Math.max(limit, 2) ? text : [...text].slice(0, Math.max(limit - 1, 1)).join('') + '…')

/** A line as polylines: it is broken where a value is missing. */
export function polylines(frame: Frame, line: Line<string>): string[] {
  const out: string[][] = [[]]
  line.x.forEach((x, index) => {
    const y = line.y[index] ?? null
    if (frame.isDrawable(x, frame.panel.x) && frame.isDrawable(y, frame.panel.y)) out[out.length - 1]!.push(`${frame.x(x).toFixed(1)},${frame.y(y).toFixed(1)}`)
    else if (out[out.length - 1]!.length) out.push([])
  })
  return out.filter((points) => points.length).map((points) => points.join(' '))
}

export const polygonPoints = (frame: Frame, shape: Shape<string>): string => shape.x.map((x, index) => `${frame.x(x ?? 0).toFixed(1)},${frame.y(shape.y[index] ?? 0).toFixed(1)}`).join(' ')

export function starPoints(x: number, y: number, r: number): string {
  return Array.from({ length: 10 }, (_, k) => {
    const [distance, angle] = [r * (k % 2 ? 1 : 2.4), Math.PI * (k / 5 - 0.5)]
    return `${(x + distance * Math.cos(angle)).toFixed(1)},${(y + distance * Math.sin(angle)).toFixed(1)}`
  }).join(' ')
}

export const dotRadius = (frame: Frame): number =>
  frame.isMap ? Math.min(4, 0.3 * Math.abs(frame.x(1) - frame.x(0)), 0.36 * Math.abs(frame.y(1) - frame.y(0))) : 3.2

/** What a position of a panel selects: by the names of both axes on a map, else by the name on x. */
export function positionSelection(panel: RenderedPanel, x: number, y: number): Selection {
  return { ...panel.x.selections[Math.round(x)], ...(isMap(panel) ? panel.y.selections[Math.round(y)] : {}) }
}

/** What lies under the pointer: its text, what it selects, its mark, and its value on x. */
export interface Hit { text: string; selection: Selection; mark: RenderedMark | null; x: number }

const inPolygon = (px: number, py: number, points: [number, number][]): boolean => {
  let inside = false
  for (let a = 0, b = points.length - 1; a < points.length; b = a++) {
    const [[ax, ay], [bx, by]] = [points[a]!, points[b]!]
    if (ay > py !== by > py && px < ((bx - ax) * (py - ay)) / (by - ay) + ax) inside = !inside
  }
  return inside
}

function distanceToSegment(px: number, py: number, [ax, ay]: [number, number], [bx, by]: [number, number]): number {
  const [dx, dy] = [bx - ax, by - ay]
  const t = Math.max(0, Math.min(1, ((px - ax) * dx + (py - ay) * dy) / (dx * dx + dy * dy || 1)))
  return Math.hypot(px - ax - t * dx, py - ay - t * dy)
}

function hitCells(frame: Frame, cells: RenderedMark & Cells<string>, px: number, py: number): Hit | null {
  const { x, y } = frame.invert(px, py)
  const [row, column] = [Math.round(y), Math.round(x)]
  const value = cells.values[row]?.[column]
  if (value === undefined) return null
  const names = [frame.panel.y.names[row], frame.panel.x.names[column]]
  const position = [names[0], names[1] && `${frame.panel.x.label} ${names[1]}`.trim()].filter(Boolean).join(', ')
  const text = cells.tips[row]?.[column] ?? (position ? `${position}: ${formatNumber(value)}` : formatNumber(value))
  return { text, selection: positionSelection(frame.panel, column, row), mark: cells, x: column }
}

function hitLine(frame: Frame, px: number, py: number): Hit | null {
  let nearest: Hit | null = null
  let smallest = 12
  for (const mark of frame.panel.marks) {
    if (mark.mark !== 'line' || !hasTip(mark)) continue
    const isScatter = ['dots', 'rings', 'stars'].includes(mark.style)
    const pixel = (k: number): [number, number] => [frame.x(mark.x[k] ?? NaN), frame.y(mark.y[k] ?? NaN)]
    for (let k = isScatter ? 0 : 1; k < mark.x.length; k++) {
      const distance = isScatter ? Math.hypot(px - pixel(k)[0], py - pixel(k)[1]) : distanceToSegment(px, py, pixel(k - 1), pixel(k))
      if (distance < smallest) [nearest, smallest] = [{ text: mark.tips[k] ?? mark.tip, selection: mark.selection, mark, x: mark.x[k] ?? 0 }, distance]
    }
  }
  return nearest
}

function hitColumn(frame: Frame, px: number): Hit | null {
  const series = frame.panel.marks.filter((mark): mark is RenderedMark & Line<string> => mark.mark === 'line' && Boolean(mark.name))
  if (frame.isMap || !series.length || series.some(hasTip)) return null
  const table = new Map<number, string[]>()
  for (const mark of series)
    mark.x.forEach((x, index) => {
      if (x === null) return
      if (!table.has(x)) table.set(x, [])
      table.get(x)!.push(`${mark.name}: ${formatNumber(mark.y[index])}`)
    })
  let [nearest, smallest] = [NaN, Infinity]
  for (const x of table.keys()) if (Math.abs(frame.x(x) - px) < smallest) [nearest, smallest] = [x, Math.abs(frame.x(x) - px)]
  if (!table.has(nearest)) return null
  const name = frame.panel.x.names[nearest] ?? `${frame.panel.x.label} ${formatNumber(nearest)}`.trim()
  return { text: [name, ...table.get(nearest)!].join('\n'), selection: positionSelection(frame.panel, nearest, 0), mark: null, x: nearest }
}

/** Finds a line or a dot with a tip, a shape, a cell, or all values of a column. */
export function hit(frame: Frame, px: number, py: number): Hit | null {
  if (!frame.contains(px, py)) return null
  const line = hitLine(frame, px, py)
  if (line) return line
  for (const mark of [...frame.panel.marks].reverse())
    if (mark.mark === 'shape' && inPolygon(px, py, mark.x.map((x, index) => [frame.x(x ?? 0), frame.y(mark.y[index] ?? 0)])))
      return { text: mark.tip || mark.name, selection: mark.selection, mark, x: 0 }
  const cells = frame.panel.marks.find((mark): mark is RenderedMark & Cells<string> => mark.mark === 'cells')
  return cells ? hitCells(frame, cells, px, py) : hitColumn(frame, px)
}
