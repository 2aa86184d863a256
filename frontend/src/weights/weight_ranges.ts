/** The colour range of a query × key map, and its largest entries. */

import { smallestRange } from '../picture/scale'

export interface Scale { low: number; high: number; /** All values are zero up to rounding. */ isRounding: boolean; /** All values are zero. */ isZero: boolean }

/** Colour range of a map: up to the 99.5th percentile of its nonzero values, symmetric if some are negative. */
export function weightsScale(values: Float32Array): Scale {
  const nonzero = values.filter((value) => Number.isFinite(value) && value !== 0).map(Math.abs).sort()
  const size = nonzero[Math.floor((nonzero.length - 1) * 0.995)] || 1
  const high = Math.max(size, smallestRange())
  return { low: values.some((value) => value < 0) ? -high : 0, high, isRounding: size < high, isZero: nonzero.length === 0 }
}

export interface WeightedToken { token: number; value: number }

/** The entries of a row (keys of a query) or of a column (queries of a key) with the largest absolute value. */
export function largestWeights(map: Float32Array, columns: number, side: 'row' | 'column', index: number, limit = 6): WeightedToken[] {
  const count = side === 'row' ? columns : map.length / columns
  const weights = Array.from({ length: count }, (_, token) => ({ token, value: side === 'row' ? map[index * columns + token]! : map[token * columns + index]! }))
  return weights.filter(({ value }) => Number.isFinite(value) && value !== 0).sort((a, b) => Math.abs(b.value) - Math.abs(a.value)).slice(0, limit)
}
