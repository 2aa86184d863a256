/** A query × key map as an image with one pixel per pair. */

import { smallestRange } from '../picture/scale'
import { rgb, shade, type Theme } from '../palette'

export interface Scale { low: number; high: number; /** All values are zero up to rounding. */ isRounding: boolean }

/** Colour range of a map: up to the 99.5th percentile of its nonzero values, symmetric if some are negative. */
export function weightsScale(values: Float32Array): Scale {
  const nonzero = values.filter((value) => Number.isFinite(value) && value !== 0).map(Math.abs).sort()
  const size = nonzero[Math.floor((nonzero.length - 1) * 0.995)] || 1
  const high = Math.max(size, smallestRange())
  return { low: values.some((value) => value < 0) ? -high : 0, high, isRounding: size < high }
}

export function weightsImage(values: Float32Array, rows: number, columns: number, scale: Scale, theme: Theme): ImageData {
  const out = new ImageData(columns, rows)
  const paper = rgb(theme.paper)
  const colours = Array.from({ length: 511 }, (_, index) => shade((index - 255) / 255, paper))
  const missingColour = rgb(theme.soft)
  for (let index = 0; index < values.length; index++) {
    const value = values[index]!
    const colour = Number.isFinite(value) ? colours[Math.round(Math.max(-1, Math.min(1, value / scale.high)) * 255) + 255]! : missingColour
    out.data.set(colour, index * 4)
    out.data[index * 4 + 3] = 255
  }
  return out
}

export interface WeightedToken { token: number; value: number }

/** The entries of a row (keys of a query) or of a column (queries of a key) with the largest absolute value. */
export function largestWeights(map: Float32Array, columns: number, side: 'row' | 'column', index: number, limit = 6): WeightedToken[] {
  const count = side === 'row' ? columns : map.length / columns
  const weights = Array.from({ length: count }, (_, token) => ({ token, value: side === 'row' ? map[index * columns + token]! : map[token * columns + index]! }))
  return weights.filter(({ value }) => Number.isFinite(value) && value !== 0).sort((a, b) => Math.abs(b.value) - Math.abs(a.value)).slice(0, limit)
}
