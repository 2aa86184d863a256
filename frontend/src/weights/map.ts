/** A map of query × key as one image, a pixel a pair. */

import { rgb, shade, type Theme } from '../palette'

export interface Scale { low: number; high: number }

/** The scale of a map: from 0 (or as far below it as above) to its 99.5th percentile of what is not 0. */
export function scaleOf(values: Float32Array): Scale {
  const there = values.filter((value) => Number.isFinite(value) && value !== 0).map(Math.abs).sort()
  const high = there[Math.floor((there.length - 1) * 0.995)] || 1
  return { low: values.some((value) => value < 0) ? -high : 0, high }
}

export function image(values: Float32Array, rows: number, columns: number, scale: Scale, theme: Theme): ImageData {
  const out = new ImageData(columns, rows)
  const paper = rgb(theme.paper)
  const shades = Array.from({ length: 511 }, (_, at) => shade((at - 255) / 255, paper))
  const none = rgb(theme.soft)
  for (let at = 0; at < values.length; at++) {
    const value = values[at]!
    const tint = Number.isFinite(value) ? shades[Math.round(Math.max(-1, Math.min(1, value / scale.high)) * 255) + 255]! : none
    out.data.set(tint, at * 4)
    out.data[at * 4 + 3] = 255
  }
  return out
}

export interface Weighed { token: number; value: number }

/** The largest entries of a row (what a query asks) or of a column (who asks a key), by size whatever their sign. */
export function largest(map: Float32Array, columns: number, side: 'row' | 'column', at: number, most = 6): Weighed[] {
  const count = side === 'row' ? columns : map.length / columns
  const found = Array.from({ length: count }, (_, token) => ({ token, value: side === 'row' ? map[at * columns + token]! : map[token * columns + at]! }))
  return found.filter(({ value }) => Number.isFinite(value) && value !== 0).sort((a, b) => Math.abs(b.value) - Math.abs(a.value)).slice(0, most)
}
