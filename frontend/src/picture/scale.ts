/** Scales of a panel: ranges, ticks, colours and the legend. */

import type { Axis, Cells, Mark, Panel } from '../api'
import type { Text } from '../messages/message'
import type { RenderedPanel } from './render_panel'

/** A number with three significant digits. */
export function formatNumber(value: number | null | undefined): string {
  if (value === null || value === undefined || Number.isNaN(value)) return 'none'
  if (!Number.isFinite(value)) return '∞'
  const size = Math.abs(value)
  if (size >= 1000 && size < 1e5) return value.toFixed(0)
  if (size !== 0 && (size >= 1e5 || size < 1e-4)) return value.toExponential(2).replace(/\.?0+e/, 'e')
  return String(Number(value.toPrecision(3)))
}

/** About `count` round numbers from low to high. */
export function roundTicks(low: number, high: number, count = 5): number[] {
  const rough = Math.max(high - low, 1e-12) / count
  const size = 10 ** Math.floor(Math.log10(rough))
  const step = [1, 2, 5, 10].map((factor) => size * factor).find((size) => size >= rough * (1 - 1e-9))!
  const out: number[] = []
  for (let index = Math.ceil(low / step - 1e-9); index <= Math.floor(high / step + 1e-9); index++) out.push(Number((index * step).toFixed(12)))
  return out
}

/** Powers of ten from low to high. If there are few, 2 and 5 times them are added; if there are none, round numbers are used. */
export function logTicks(low: number, high: number): number[] {
  const powers: number[] = []
  for (let k = Math.floor(Math.log10(low)); k <= Math.ceil(Math.log10(high)); k++) powers.push(10 ** k)
  const inside = (values: number[]) => values.filter((x) => low * 0.999 <= x && x <= high * 1.001)
  const tens = inside(powers)
  const denser = inside(powers.flatMap((power) => [power, 2 * power, 5 * power]))
  return tens.length > 2 ? tens : denser.length > 1 ? denser : roundTicks(low, high)
}

/** Evenly spaced numbers with as many digits as they need to differ. */
export function formatTicks(values: number[]): string[] {
  const texts = values.map(formatNumber)
  const gap = Math.min(...values.slice(1).map((value, index) => value - values[index]!), 1e300)
  const isDistinct = values.length < 2 || (new Set(texts).size === texts.length && texts.every((text, index) => Math.abs(Number(text) - values[index]!) < 1e-3 * gap))
  if (isDistinct) return texts
  const digits = Math.max(0, -Math.floor(Math.log10(gap)))
  return values.map((value) => value.toFixed(Math.min(digits, 12)))
}

/** At most `limit` evenly spaced positions of an axis with names. */
export function thinTicks(axis: Axis<Text>, limit: number): number[] {
  const positions = axis.marked.length ? axis.marked : axis.names.map((_, index) => index)
  const every = Math.max(1, Math.ceil(positions.length / Math.max(limit, 1)))
  return positions.filter((_, index) => index % every === 0)
}

export const isMap = (panel: Panel<Text>): boolean => panel.marks.some((mark) => mark.mark === 'cells')
export const hasTip = (mark: Mark<Text>): boolean => mark.mark === 'line' && Boolean(mark.tip || mark.tips.length)

function markExtent(mark: Mark<Text>, direction: 'x' | 'y'): number[] {
  if (mark.mark === 'cells') return [-0.5, (direction === 'x' ? (mark.values[0]?.length ?? 1) : mark.values.length) - 0.5]
  const values = mark[direction]
  return (Array.isArray(values) ? values : [values]).map((value) => value ?? NaN)
}

/** Minimum and maximum of an axis, with padding. */
export function valueRange(panel: Panel<Text>, direction: 'x' | 'y'): [number, number] {
  const axis = panel[direction]
  let [low, high] = [Infinity, -Infinity]
  for (const mark of panel.marks)
    for (const value of markExtent(mark, direction))
      if (Number.isFinite(value) && (value > 0 || !axis.log)) [low, high] = [Math.min(low, value), Math.max(high, value)]
  if (low > high) [low, high] = axis.log ? [1, 10] : [0, 1]
  if (!axis.log && low === high) [low, high] = [low - 0.5, high + 0.5]
  else if (!axis.log && !axis.names.length) {
    const padding = 0.06 * (high - low)
    ;[low, high] = [low === 0 ? low : low - padding, high + padding]
  }
  return [axis.low ?? low, axis.high ?? high]
}

/** Fraction of its natural size below which a value is zero up to rounding in float32. */
const ROUNDING = 1e-6

/** The smallest range of a colour scale. `naturalSizes` are sizes that the field can have, such as those of its null; most fields are of size 1. */
export function smallestRange(...naturalSizes: (Float32Array | number)[]): number {
  let largest = 1
  for (const sizes of naturalSizes)
    for (const size of typeof sizes === 'number' ? [sizes] : sizes) if (Number.isFinite(size)) largest = Math.max(largest, Math.abs(size))
  return ROUNDING * largest
}

/** The largest distance of a cell from the centre of its scale. */
const reachOf = (cells: Cells<Text>): number => Math.max(Math.abs(cells.low - cells.centre), Math.abs(cells.high - cells.centre))

/** Whether all values of a map are zero up to rounding. */
export const isRounding = (cells: Cells<Text>): boolean => reachOf(cells) < smallestRange(cells.centre)

/** The colour of a cell as a value from −1 to 1: its size is the darkness, its sign the colour. */
export function shadeOf(cells: Cells<Text>, value: number | null): number {
  if (value === null || Number.isNaN(value)) return 0
  const reach = Math.max(reachOf(cells), smallestRange(cells.centre))
  return Math.max(-1, Math.min(1, (value - cells.centre) / reach))
}

export interface LegendEntry { name: string; colour: string; style: string }

/** Entries of the legend: named shapes, and named lines without a tip. */
export function legendOf(panel: RenderedPanel): LegendEntry[] {
  const entries = new Map<string, LegendEntry>()
  for (const mark of panel.marks)
    if (mark.mark === 'line' && mark.name && !hasTip(mark)) entries.set(mark.name, { name: mark.name, colour: mark.colour, style: mark.style })
  for (const mark of panel.marks) if (mark.mark === 'shape' && mark.name) entries.set(mark.name, { name: mark.name, colour: mark.colour, style: 'area' })
  return [...entries.values()]
}
