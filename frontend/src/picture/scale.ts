/** Numbers on axes and in words: what picture.py and the SVG hand do, in the page. */

import type { Axis, Cells, Mark, Panel } from '../wire'

/** A number as it is said: three digits that count. */
export function number(value: number | null | undefined): string {
  if (value === null || value === undefined || Number.isNaN(value)) return 'none'
  if (!Number.isFinite(value)) return '∞'
  const size = Math.abs(value)
  if (size >= 1000 && size < 1e5) return value.toFixed(0)
  if (size !== 0 && (size >= 1e5 || size < 1e-4)) return value.toExponential(2).replace(/\.?0+e/, 'e')
  return String(Number(value.toPrecision(3)))
}

/** About `count` round numbers from low to high. */
export function ticks(low: number, high: number, count = 5): number[] {
  const rough = Math.max(high - low, 1e-12) / count
  const size = 10 ** Math.floor(Math.log10(rough))
  const step = [1, 2, 5, 10].map((times) => size * times).find((one) => one >= rough * (1 - 1e-9))!
  const out: number[] = []
  for (let at = Math.ceil(low / step - 1e-9); at <= Math.floor(high / step + 1e-9); at++) out.push(Number((at * step).toFixed(12)))
  return out
}

/** Powers of ten from low to high, with twice and five times them where there are few; round numbers where even these are none. */
export function decades(low: number, high: number): number[] {
  const powers: number[] = []
  for (let k = Math.floor(Math.log10(low)); k <= Math.ceil(Math.log10(high)); k++) powers.push(10 ** k)
  const inside = (some: number[]) => some.filter((x) => low * 0.999 <= x && x <= high * 1.001)
  const tens = inside(powers)
  const more = inside(powers.flatMap((power) => [power, 2 * power, 5 * power]))
  return tens.length > 2 ? tens : more.length > 1 ? more : ticks(low, high)
}

/** Evenly spaced numbers with as many digits as tell them apart. */
export function inWords(values: number[]): string[] {
  const words = values.map(number)
  const apart = Math.min(...values.slice(1).map((value, at) => value - values[at]!), 1e300)
  const same = values.length < 2 || (new Set(words).size === words.length && words.every((word, at) => Math.abs(Number(word) - values[at]!) < 1e-3 * apart))
  if (same) return words
  const digits = Math.max(0, -Math.floor(Math.log10(apart)))
  return values.map((value) => value.toFixed(Math.min(digits, 12)))
}

/** At most `most` evenly spaced places of an axis with names. */
export function thinned(axis: Axis, most: number): number[] {
  const places = axis.marked.length ? axis.marked : axis.names.map((_, at) => at)
  const every = Math.max(1, Math.ceil(places.length / Math.max(most, 1)))
  return places.filter((_, at) => at % every === 0)
}

export const isMap = (panel: Panel): boolean => panel.marks.some((mark) => mark.mark === 'cells')
export const answers = (mark: Mark): boolean => mark.mark === 'line' && Boolean(mark.tip || mark.tips.length)

function extent(mark: Mark, direction: 'x' | 'y'): number[] {
  if (mark.mark === 'cells') return [-0.5, (direction === 'x' ? (mark.values[0]?.length ?? 1) : mark.values.length) - 0.5]
  const values = mark[direction]
  return (Array.isArray(values) ? values : [values]).map((value) => value ?? NaN)
}

/** The least and greatest value on an axis, with some air. */
export function span(panel: Panel, direction: 'x' | 'y'): [number, number] {
  const axis = panel[direction]
  let [low, high] = [Infinity, -Infinity]
  for (const mark of panel.marks)
    for (const value of extent(mark, direction))
      if (Number.isFinite(value) && (value > 0 || !axis.log)) [low, high] = [Math.min(low, value), Math.max(high, value)]
  if (low > high) [low, high] = axis.log ? [1, 10] : [0, 1]
  if (!axis.log && low === high) [low, high] = [low - 0.5, high + 0.5]
  else if (!axis.log && !axis.names.length) {
    const air = 0.06 * (high - low)
    ;[low, high] = [low === 0 ? low : low - air, high + air]
  }
  return [axis.low ?? low, axis.high ?? high]
}

/** A value from −1 to 1: how dark its cell is, and in which of the two colours. */
export function shadeOf(cells: Cells, value: number | null): number {
  if (value === null || Number.isNaN(value)) return 0
  const reach = Math.max(Math.abs(cells.low - cells.centre), Math.abs(cells.high - cells.centre), 1e-30)
  return Math.max(-1, Math.min(1, (value - cells.centre) / reach))
}

/** What needs a key: named shapes, and named lines without a hover text of their own. */
export function keyOf(panel: Panel): { name: string; colour: string; style: string }[] {
  const found = new Map<string, { name: string; colour: string; style: string }>()
  for (const mark of panel.marks)
    if (mark.mark === 'line' && mark.name && !answers(mark)) found.set(mark.name, { name: mark.name, colour: mark.colour, style: mark.style })
  for (const mark of panel.marks) if (mark.mark === 'shape' && mark.name) found.set(mark.name, { name: mark.name, colour: mark.colour, style: 'dots' })
  return [...found.values()]
}
