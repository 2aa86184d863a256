/** The cloud as a renderer draws it: points, colours, labels and lines. */

import type { Points } from '../api'
import type { Arrow } from './arrows'

/** Centre and radius of the points. They are quantiles, so outliers do not shrink the cloud. */
export interface Ball { x: number; y: number; z: number; size: number }

export function boundingBall({ points }: Pick<Points, 'points'>, isShown: (token: number) => boolean, tokens: number): Ball {
  const rows: number[] = []
  for (let row = 0; row * 3 < points.length; row++) if (isShown(row % tokens)) rows.push(row * 3)
  const sorted = (value: (offset: number) => number) => Float64Array.from(rows, value).sort()
  const quantile = (values: Float64Array, fraction: number) => values[Math.round((values.length - 1) * fraction)] ?? 0
  const [x, y, z] = [0, 1, 2].map((k) => {
    const coordinates = sorted((offset) => points[offset + k]!)
    return (quantile(coordinates, 0.01) + quantile(coordinates, 0.99)) / 2
  }) as [number, number, number]
  return { x, y, z, size: quantile(sorted((offset) => Math.hypot(points[offset]! - x, points[offset + 1]! - y, points[offset + 2]! - z)), 0.98) || 1 }
}

/** The points of all steps, scaled to a ball of radius 1. */
export function scaleToBall({ points }: Points, ball: Ball): Float32Array {
  const out = new Float32Array(points.length)
  const centre = [ball.x, ball.y, ball.z]
  for (let offset = 0; offset < points.length; offset++) out[offset] = (points[offset]! - centre[offset % 3]!) / ball.size
  return out
}

/** A frame is at least this large, relative to the cloud of all steps, so that a collapsed cloud is not blown up. */
const SMALLEST_FRAME = 0.08

/** The ball of the shown points of every step. It includes the star where that leaves the points at least half of their size. */
export function stepFrames(scaled: Float32Array, tokens: number, isShown: (token: number) => boolean, star: ArrayLike<number> | null): Ball[] {
  return Array.from({ length: scaled.length / (tokens * 3) }, (_, step) => {
    const points = scaled.subarray(step * tokens * 3, (step + 1) * tokens * 3)
    const ball = boundingBall({ points }, isShown, tokens)
    const distance = star ? Math.hypot(star[0]! - ball.x, star[1]! - ball.y, star[2]! - ball.z) : 0
    const needed = (distance + ball.size) / 2 // radius of the smallest ball around the points and the star
    if (!star || distance <= ball.size || needed > 2 * ball.size) return { ...ball, size: Math.max(SMALLEST_FRAME, ball.size) }
    const shift = (needed - ball.size) / distance
    return { x: ball.x + shift * (star[0]! - ball.x), y: ball.y + shift * (star[1]! - ball.y), z: ball.z + shift * (star[2]! - ball.z), size: needed }
  })
}

/** The frame between two steps, which moves and zooms evenly. */
export function frameAt(frames: Ball[], playhead: number): Ball {
  const from = Math.max(0, Math.min(frames.length - 1, Math.floor(playhead)))
  const [a, b, t] = [frames[from]!, frames[Math.min(frames.length - 1, from + 1)]!, Math.max(0, Math.min(1, playhead - from))]
  const between = (first: number, second: number) => first + (second - first) * t
  return { x: between(a.x, b.x), y: between(a.y, b.y), z: between(a.z, b.z), size: a.size ** (1 - t) * b.size ** t }
}

/** The points between two steps: a playhead of 2.25 is a quarter of the way from step 2 to step 3. */
export function pointsAt(points: Float32Array, tokens: number, playhead: number, out = new Float32Array(tokens * 3)): Float32Array {
  const last = points.length / (tokens * 3) - 1
  const from = Math.max(0, Math.min(last, Math.floor(playhead)))
  const to = Math.min(last, from + 1)
  const fraction = Math.max(0, Math.min(1, playhead - from))
  for (let k = 0; k < tokens * 3; k++) out[k] = points[from * tokens * 3 + k]! * (1 - fraction) + points[to * tokens * 3 + k]! * fraction
  return out
}

export interface Bounds { x: number; y: number; width: number; height: number }
export interface Box extends Bounds { token: number }

/** Labels that do not overlap. Earlier ones in `order` win. A negative token reserves its box but gets no label. */
export function placeLabels(order: number[], boxOf: (token: number) => Box | null, width: number, height: number, limit: number): Box[] {
  const cell = 16
  const columns = Math.ceil(width / cell) + 1
  const rows = Math.ceil(height / cell) + 1
  const occupied = new Map<number, Box[]>()
  const visible: Box[] = []
  for (const token of order) {
    if (visible.length >= limit) break
    const box = boxOf(token)
    if (!box || box.x + box.width < 0 || box.y + box.height < 0 || box.x > width || box.y > height) continue
    const [left, right] = [Math.max(0, Math.floor(box.x / cell)), Math.min(columns - 1, Math.floor((box.x + box.width) / cell))]
    const [top, bottom] = [Math.max(0, Math.floor(box.y / cell)), Math.min(rows - 1, Math.floor((box.y + box.height) / cell))]
    const overlaps = (other: Box) => box.x < other.x + other.width && other.x < box.x + box.width && box.y < other.y + other.height && other.y < box.y + box.height
    let isFree = true
    for (let row = top; isFree && row <= bottom; row++)
      for (let column = left; isFree && column <= right; column++) isFree = !occupied.get(row * columns + column)?.some(overlaps)
    if (!isFree) continue
    for (let row = top; row <= bottom; row++)
      for (let column = left; column <= right; column++) {
        const boxes = occupied.get(row * columns + column)
        if (boxes) boxes.push(box)
        else occupied.set(row * columns + column, [box])
      }
    if (token >= 0) visible.push(box)
  }
  return visible
}

export interface Arc { from: number; to: number; weight: number }
export const ARC_COLOURS = { positive: '#2f6fbf', negative: '#d9622b' }

/** The largest attention weights or changes of weights (query × key), of one query or of all. */
export function strongestArcs(map: Float32Array, tokens: number, query: number | null, limit = 200, minimum = 0.02): Arc[] {
  const arcs: Arc[] = []
  const rows = query === null ? Array.from({ length: tokens }, (_, row) => row) : [query]
  for (const from of rows)
    for (let to = 0; to < tokens; to++) {
      const weight = map[from * tokens + to]!
      if (Math.abs(weight) >= minimum && from !== to) arcs.push({ from, to, weight })
    }
  return arcs.sort((a, b) => Math.abs(b.weight) - Math.abs(a.weight)).slice(0, limit)
}

/** Points of an arc from a to b that bends away from the centre of the cloud. */
export function arcPoints(a: ArrayLike<number>, b: ArrayLike<number>, segments = 12): number[][] {
  const centre = [0, 1, 2].map((k) => ((a[k]! + b[k]!) / 2) * 1.18 + (k === 1 ? 0.06 : 0))
  return Array.from({ length: segments + 1 }, (_, index) => {
    const t = index / segments
    return [0, 1, 2].map((k) => (1 - t) ** 2 * a[k]! + 2 * t * (1 - t) * centre[k]! + t * t * b[k]!)
  })
}

/** The most likely next token of the predicting token after a step. */
export interface PathWord { step: number; text: string }

/** The words along a trail where they change. The last step has the star instead. */
export function changingWords(words: string[]): PathWord[] {
  return words.flatMap((text, step) => (step < words.length - 1 && text !== words[step - 1] ? [{ step, text }] : []))
}

/** The point of the predicting token at the step of a word. */
export function pathPoint(scene: Scene, { step }: PathWord): Float32Array {
  const start = (step * scene.tokens + scene.predicting!) * 3
  return scene.points.subarray(start, start + 3)
}

/** Everything that a frame shows. Colours are RGB bytes, three per token. */
export interface Scene {
  points: Float32Array
  tokens: number
  playhead: number
  colours: Uint8Array
  isShown: (token: number) => boolean
  /** Highlighted tokens. If there are any, the others are faded. */
  highlighted: Set<number>
  labels: string[]
  star: [number, number, number] | null
  starLabel: string
  /** The token whose point predicts the next token: it has a ring. */
  predicting: number | null
  /** What the predicting token would say along its trail. */
  pathWords: PathWord[]
  hasTrail: (token: number) => boolean
  arcs: Arc[]
  arrows: Arrow[]
  /** The path of the predicting token before the edits. */
  ghostPath: Float32Array | null
  comparison: Float32Array | null
  comparisonTokens: number
  axes: string[]
}
