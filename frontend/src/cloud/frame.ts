/** The cloud at a moment: numbers that a hand (WebGL or a plain canvas) draws, no drawing here. */

import type { Points } from '../wire'
import type { Stroke } from './strokes'

/** Middle and size of all points, so that any cloud fills the same ball; a few far ones do not shrink the rest. */
export interface Ball { x: number; y: number; z: number; size: number }

export function ballOf({ points }: Points, shown: (token: number) => boolean, tokens: number): Ball {
  const rows: number[] = []
  for (let row = 0; row * 3 < points.length; row++) if (shown(row % tokens)) rows.push(row * 3)
  const sorted = (value: (at: number) => number) => Float64Array.from(rows, value).sort()
  const share = (values: Float64Array, part: number) => values[Math.round((values.length - 1) * part)] ?? 0
  const [x, y, z] = [0, 1, 2].map((k) => {
    const along = sorted((at) => points[at + k]!)
    return (share(along, 0.01) + share(along, 0.99)) / 2
  }) as [number, number, number]
  return { x, y, z, size: share(sorted((at) => Math.hypot(points[at]! - x, points[at + 1]! - y, points[at + 2]! - z)), 0.98) || 1 }
}

/** Every point of every step inside that ball of radius one. */
export function inBall({ points }: Points, ball: Ball): Float32Array {
  const out = new Float32Array(points.length)
  const middle = [ball.x, ball.y, ball.z]
  for (let at = 0; at < points.length; at++) out[at] = (points[at]! - middle[at % 3]!) / ball.size
  return out
}

/** The cloud between two steps: `at` 2.25 is a quarter of the way from step 2 to step 3. */
export function cloudAt(all: Float32Array, tokens: number, at: number, out = new Float32Array(tokens * 3)): Float32Array {
  const last = all.length / (tokens * 3) - 1
  const from = Math.max(0, Math.min(last, Math.floor(at)))
  const to = Math.min(last, from + 1)
  const share = Math.max(0, Math.min(1, at - from))
  for (let k = 0; k < tokens * 3; k++) out[k] = all[from * tokens * 3 + k]! * (1 - share) + all[to * tokens * 3 + k]! * share
  return out
}

export interface Box { token: number; x: number; y: number; width: number; height: number }

/** Labels that fit beside one another: those first in `order` win, a place once taken is taken; a box of no token (below 0) only takes its place. */
export function decluttered(order: number[], boxOf: (token: number) => Box | null, width: number, height: number, most: number): Box[] {
  const cell = 16
  const columns = Math.ceil(width / cell) + 1
  const rows = Math.ceil(height / cell) + 1
  const taken = new Map<number, Box[]>()
  const kept: Box[] = []
  for (const token of order) {
    if (kept.length >= most) break
    const box = boxOf(token)
    if (!box || box.x + box.width < 0 || box.y + box.height < 0 || box.x > width || box.y > height) continue
    const [left, right] = [Math.max(0, Math.floor(box.x / cell)), Math.min(columns - 1, Math.floor((box.x + box.width) / cell))]
    const [top, bottom] = [Math.max(0, Math.floor(box.y / cell)), Math.min(rows - 1, Math.floor((box.y + box.height) / cell))]
    const over = (other: Box) => box.x < other.x + other.width && other.x < box.x + box.width && box.y < other.y + other.height && other.y < box.y + box.height
    let free = true
    for (let row = top; free && row <= bottom; row++)
      for (let column = left; free && column <= right; column++) free = !taken.get(row * columns + column)?.some(over)
    if (!free) continue
    for (let row = top; row <= bottom; row++)
      for (let column = left; column <= right; column++) {
        const here = taken.get(row * columns + column)
        if (here) here.push(box)
        else taken.set(row * columns + column, [box])
      }
    if (token >= 0) kept.push(box)
  }
  return kept
}

export interface Arc { from: number; to: number; weight: number }
export const OF_ARCS = { more: '#2f6fbf', less: '#d9622b' }

/** The strongest pairs of a map of weights (query × key), or of a change of it, of one query where one is given. */
export function strongest(map: Float32Array, tokens: number, query: number | null, most = 200, least = 0.02): Arc[] {
  const arcs: Arc[] = []
  const rows = query === null ? Array.from({ length: tokens }, (_, row) => row) : [query]
  for (const from of rows)
    for (let to = 0; to < tokens; to++) {
      const weight = map[from * tokens + to]!
      if (Math.abs(weight) >= least && from !== to) arcs.push({ from, to, weight })
    }
  return arcs.sort((a, b) => Math.abs(b.weight) - Math.abs(a.weight)).slice(0, most)
}

/** Points of a bow from a to b that bends away from the middle of the cloud. */
export function bow(a: ArrayLike<number>, b: ArrayLike<number>, pieces = 12): number[][] {
  const middle = [0, 1, 2].map((k) => ((a[k]! + b[k]!) / 2) * 1.18 + (k === 1 ? 0.06 : 0))
  return Array.from({ length: pieces + 1 }, (_, at) => {
    const t = at / pieces
    return [0, 1, 2].map((k) => (1 - t) ** 2 * a[k]! + 2 * t * (1 - t) * middle[k]! + t * t * b[k]!)
  })
}

/** What a frame shows. Colours are 0 to 255, three a token. */
export interface Scene {
  all: Float32Array
  tokens: number
  at: number
  colours: Uint8Array
  shown: (token: number) => boolean
  /** Tokens that stand out; where there are some the rest steps back. */
  bright: Set<number>
  labels: string[]
  star: [number, number, number] | null
  starLabel: string
  trails: boolean
  arcs: Arc[]
  strokes: Stroke[]
  beside: Float32Array | null
  besideTokens: number
  axes: string[]
}
