/** Arrows in the cloud: the update of one head, and the optimal transport between two steps. */

import { PALETTE } from '../palette'
import type { AnalysisResult, Moves } from '../api'
import { viewMatrix, type Camera } from './camera'

export type Point = [number, number, number]

export interface Arrow { token: number; from: Point; to: Point; colour: string }

export const MOVE_COLOUR = PALETTE.third!
export const COUPLING_COLOUR = PALETTE.fourth!

const pointAt = (points: Float32Array, tokens: number, step: number, token: number): Point => {
  const offset = (step * tokens + token) * 3
  return [points[offset]!, points[offset + 1]!, points[offset + 2]!]
}

/** A round factor (1, 2, 5, 10, … or below 1) for the length of arrows, so that most are visible and stay inside the cloud. */
export function arrowScale(moves: Float32Array, size: number): number {
  const lengths = Float64Array.from({ length: moves.length / 3 }, (_, token) => Math.hypot(moves[token * 3]!, moves[token * 3 + 1]!, moves[token * 3 + 2]!)).sort()
  const typical = (lengths[Math.floor((lengths.length - 1) * 0.9)] ?? 0) / size
  if (!(typical > 0)) return 1
  const target = 0.3 / typical
  const power = 10 ** Math.floor(Math.log10(target))
  return power * (target / power >= 5 ? 5 : target / power >= 2 ? 2 : 1)
}

/** The update of one head for each token, starting at a step and drawn `factor` times as long. */
export function headArrows({ moves }: Moves, points: Float32Array, tokens: number, step: number, size: number, factor: number): Arrow[] {
  return Array.from({ length: tokens }, (_, token) => {
    const from = pointAt(points, tokens, step, token)
    const to = from.map((x, k) => x + (moves[token * 3 + k]! / size) * factor) as Point
    return { token, from, to, colour: MOVE_COLOUR }
  })
}

export interface Coupling { from: string; to: string; pairs: [number, number][]; tokens: number }

/** The optimal coupling around a step: tokens whose optimal partner in the next cloud is another token. */
export function couplingAt(result: AnalysisResult, steps: string[], step: number): Coupling | null {
  const stepNames = (result.coords.point?.values ?? []).map(String)
  const positions = (result.coords.token?.values ?? []).map(Number)
  const field = result.arrays.coupling
  if (!field || stepNames.length < 2) return null
  const lastReached = stepNames.filter((name) => steps.indexOf(name) <= step).length - 1
  const row = Math.max(0, Math.min(stepNames.length - 2, lastReached))
  const pairs: [number, number][] = []
  positions.forEach((token, index) => {
    const partner = positions[field.values[row * positions.length + index]!]!
    if (partner !== token) pairs.push([token, partner])
  })
  return { from: stepNames[row]!, to: stepNames[row + 1]!, pairs, tokens: positions.length }
}

/** Arrows from a token before a step to its optimal partner after it. */
export function couplingArrows({ from, to, pairs }: Coupling, points: Float32Array, tokens: number, steps: string[]): Arrow[] {
  const [a, b] = [steps.indexOf(from), steps.indexOf(to)]
  return pairs.map(([token, partner]) => ({ token, from: pointAt(points, tokens, a, token), to: pointAt(points, tokens, b, partner), colour: COUPLING_COLOUR }))
}

/** End points of the two short lines at the tip of an arrow. They face the camera. */
export function arrowTip({ from, to }: Arrow, camera: Camera): [Point, Point] {
  const m = viewMatrix(camera)
  const [bx, by, bz] = [m[2]!, m[6]!, m[10]!]
  const [dx, dy, dz] = [to[0] - from[0], to[1] - from[1], to[2] - from[2]]
  const length = Math.hypot(dx, dy, dz) || 1
  const size = Math.min(0.035, 0.4 * length) / length
  const side: Point = [dy * bz - dz * by, dz * bx - dx * bz, dx * by - dy * bx]
  const end = (sign: number): Point => [0, 1, 2].map((k) => to[k]! - size * ([dx, dy, dz][k]! + sign * 0.5 * side[k]!)) as Point
  return [end(1), end(-1)]
}
