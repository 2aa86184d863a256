/** The cloud as a renderer draws it: points, colours, labels and lines. */

import type { Points } from '../api'
import type { Arrow } from './arrows'
import { screenAxes, START } from './camera'

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

/** A wide picture has this much more room in its width than in its height, at most. */
const WIDEST = 1.7

/**
 * The ball of the shown points of every step. It includes the star where that leaves the points at least half of their size.
 * `aspect` is the width of the picture divided by its height: a star beside the points needs less room in a wide picture.
 */
export function stepFrames(scaled: Float32Array, tokens: number, isShown: (token: number) => boolean, star: ArrayLike<number> | null, aspect = 1): Ball[] {
  const [right] = screenAxes(START)
  return Array.from({ length: scaled.length / (tokens * 3) }, (_, step) => {
    const points = scaled.subarray(step * tokens * 3, (step + 1) * tokens * 3)
    const ball = boundingBall({ points }, isShown, tokens)
    const distance = star ? Math.hypot(star[0]! - ball.x, star[1]! - ball.y, star[2]! - ball.z) : 0
    const radius = (distance + ball.size) / 2 // of the smallest ball around the points and the star
    if (!star || distance <= ball.size) return { ...ball, size: Math.max(SMALLEST_FRAME, ball.size) }
    const way = [star[0]! - ball.x, star[1]! - ball.y, star[2]! - ball.z]
    const beside = Math.abs(right[0]! * way[0]! + right[1]! * way[1]! + right[2]! * way[2]!) / distance
    const size = Math.max(ball.size, radius / (1 + beside * (Math.max(1, Math.min(WIDEST, aspect)) - 1)))
    if (size > 2 * ball.size) return { ...ball, size: Math.max(SMALLEST_FRAME, ball.size) }
    const shift = (radius - ball.size) / distance
    return { x: ball.x + shift * way[0]!, y: ball.y + shift * way[1]!, z: ball.z + shift * way[2]!, size }
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
/** `choice`: which of the places of a label it is. */
export interface Box extends Bounds { token: number; choice: number }

/** Labels that do not overlap, each in the first of its places that is free. Earlier ones in `order` win. A negative token reserves its box but gets no label. */
export function placeLabels(order: number[], placesOf: (token: number) => Bounds[], width: number, height: number, limit: number): Box[] {
  const cell = 16
  const columns = Math.ceil(width / cell) + 1
  const rows = Math.ceil(height / cell) + 1
  const occupied = new Map<number, Box[]>()
  const visible: Box[] = []
  const isOnScreen = (box: Bounds) => box.x + box.width >= 0 && box.y + box.height >= 0 && box.x <= width && box.y <= height
  /** The cells of a grid that a box touches, so that it is compared with its neighbours only. */
  const cellsOf = (box: Bounds): number[] => {
    const cells: number[] = []
    for (let row = Math.max(0, Math.floor(box.y / cell)); row <= Math.min(rows - 1, Math.floor((box.y + box.height) / cell)); row++)
      for (let column = Math.max(0, Math.floor(box.x / cell)); column <= Math.min(columns - 1, Math.floor((box.x + box.width) / cell)); column++) cells.push(row * columns + column)
    return cells
  }
  for (const token of order) {
    if (visible.length >= limit) break
    const places = placesOf(token)
    const choice = places.findIndex((box) => isOnScreen(box) && !cellsOf(box).some((cell) => occupied.get(cell)?.some((other) => overlap(box, other))))
    if (choice < 0) continue
    const box = { ...places[choice]!, token, choice }
    for (const cell of cellsOf(box)) {
      const boxes = occupied.get(cell)
      if (boxes) boxes.push(box)
      else occupied.set(cell, [box])
    }
    if (token >= 0) visible.push(box)
  }
  return visible
}

export const overlap = (a: Bounds, b: Bounds): boolean => a.x < b.x + b.width && b.x < a.x + a.width && a.y < b.y + b.height && b.y < a.y + a.height

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

/** The control point of an arc from a to b that bends away from the centre of the cloud. */
export const arcControl = (a: ArrayLike<number>, b: ArrayLike<number>): number[] => [0, 1, 2].map((k) => ((a[k]! + b[k]!) / 2) * 1.18 + (k === 1 ? 0.06 : 0))

/** Points of that arc. */
export function arcPoints(a: ArrayLike<number>, b: ArrayLike<number>, segments = 12): number[][] {
  const control = arcControl(a, b)
  return Array.from({ length: segments + 1 }, (_, index) => {
    const t = index / segments
    return [0, 1, 2].map((k) => (1 - t) ** 2 * a[k]! + 2 * t * (1 - t) * control[k]! + t * t * b[k]!)
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

/** The points of a token at its first steps. */
export function tokenPath({ points, tokens }: Pick<Scene, 'points' | 'tokens'>, token: number, steps: number): Float32Array {
  return Float32Array.from({ length: steps * 3 }, (_, k) => points[(Math.floor(k / 3) * tokens + token) * 3 + (k % 3)]!)
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

/** Everything that a cloud without a prediction, edits or a selection does not show. */
export const PLAIN_SCENE: Pick<Scene, 'isShown' | 'highlighted' | 'star' | 'starLabel' | 'predicting' | 'pathWords' | 'arcs' | 'arrows' | 'ghostPath' | 'comparison' | 'comparisonTokens' | 'axes'> = {
  isShown: () => true, highlighted: new Set(), star: null, starLabel: '', predicting: null, pathWords: [], arcs: [], arrows: [], ghostPath: null, comparison: null, comparisonTokens: 0, axes: [],
}
