/** Arcs over the text, from a query to the keys it attends to. */

import { largestWeights, type WeightedToken } from './weight_ranges'

export interface Box { left: number; top: number; width: number; height: number }

const MAX_ARCS = 8
/** Smaller weights have no arc. */
const MIN_WEIGHT = 0.02
/** Width of the arc with the largest weight, in pixels. */
const WIDEST = 6
const NARROWEST = 1

/** The keys with the largest weights (or changes of weights) of a query. The query itself may be among them. */
export const readTokens = (map: Float32Array, columns: number, query: number): WeightedToken[] =>
  largestWeights(map, columns, 'row', query, MAX_ARCS).filter(({ value }) => Math.abs(value) >= MIN_WEIGHT)

export const arcWidth = (weight: number, largest: number): number => Math.max(NARROWEST, WIDEST * Math.abs(weight / largest))

const centre = ({ left, width }: Box): number => left + width / 2

/** A path between two words: an arch above words of the same line, else a curve through the lines between them. */
export function arcPath(query: Box, key: Box): string {
  const [from, to] = [centre(query), centre(key)]
  const isSameLine = Math.abs(query.top - key.top) < query.height / 2
  if (isSameLine) {
    const top = query.top - Math.min(11, 4 + 0.05 * Math.abs(from - to))
    return `M${from} ${query.top}C${from} ${top} ${to} ${top} ${to} ${key.top}`
  }
  const [start, end] = key.top < query.top ? [query.top, key.top + key.height] : [query.top + query.height, key.top]
  const middle = (start + end) / 2
  return `M${from} ${start}C${from} ${middle} ${to} ${middle} ${to} ${end}`
}
