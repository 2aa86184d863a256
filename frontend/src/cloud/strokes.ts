/** Straight lines among the points: where a head alone pushes tokens, and which place each would take at least cost. */

import { PALETTE } from '../palette'
import type { Answer, Moves } from '../wire'
import { viewOf, type Eye } from './camera'

export type Place = [number, number, number]

/** A line that belongs to a token; a barbed one is an arrow. */
export interface Stroke { token: number; from: Place; to: Place; colour: string; barbed: boolean }

export const OF_MOVES = PALETTE.third!
export const OF_COUPLING = PALETTE.fourth!

const placeOf = (all: Float32Array, tokens: number, step: number, token: number): Place => {
  const at = (step * tokens + token) * 3
  return [all[at]!, all[at + 1]!, all[at + 2]!]
}

/** How much longer arrows are drawn than they are (1, 2, 5, 10, …, or less than 1), so that most can be seen and none leaves the cloud. */
export function enlarged(moves: Float32Array, size: number): number {
  const long = Float64Array.from({ length: moves.length / 3 }, (_, token) => Math.hypot(moves[token * 3]!, moves[token * 3 + 1]!, moves[token * 3 + 2]!)).sort()
  const usual = (long[Math.floor((long.length - 1) * 0.9)] ?? 0) / size
  if (!(usual > 0)) return 1
  const wish = 0.3 / usual
  const tens = 10 ** Math.floor(Math.log10(wish))
  return tens * (wish / tens >= 5 ? 5 : wish / tens >= 2 ? 2 : 1)
}

/** Arrows from where tokens stand before a layer to where one of its heads alone would bring them, `times` as long as they are. */
export function arrows({ moves }: Moves, all: Float32Array, tokens: number, step: number, size: number, times: number): Stroke[] {
  return Array.from({ length: tokens }, (_, token) => {
    const from = placeOf(all, tokens, step, token)
    const to = from.map((x, k) => x + (moves[token * 3 + k]! / size) * times) as Place
    return { token, from, to, colour: OF_MOVES, barbed: true }
  })
}

export interface Coupling { from: string; to: string; pairs: [number, number][]; tokens: number }

/** The optimal coupling of the two clouds between which a step lies: tokens whose least-cost place is another's. */
export function couplingAt(answer: Answer, steps: string[], step: number): Coupling | null {
  const names = (answer.coords.point?.values ?? []).map(String)
  const places = (answer.coords.token?.values ?? []).map(Number)
  const field = answer.arrays.coupling
  if (!field || names.length < 2) return null
  const reached = names.filter((name) => steps.indexOf(name) <= step).length - 1
  const row = Math.max(0, Math.min(names.length - 2, reached))
  const pairs: [number, number][] = []
  places.forEach((token, at) => {
    const partner = places[field.values[row * places.length + at]!]!
    if (partner !== token) pairs.push([token, partner])
  })
  return { from: names[row]!, to: names[row + 1]!, pairs, tokens: places.length }
}

/** Lines from a token's place before a step to the place after it that it would take. */
export function couplingLines({ from, to, pairs }: Coupling, all: Float32Array, tokens: number, steps: string[]): Stroke[] {
  const [a, b] = [steps.indexOf(from), steps.indexOf(to)]
  return pairs.map(([token, partner]) => ({ token, from: placeOf(all, tokens, a, token), to: placeOf(all, tokens, b, partner), colour: OF_COUPLING, barbed: true }))
}

/** Both ends of the barbs of an arrow, turned to the eye. */
export function barbs({ from, to }: Stroke, eye: Eye): [Place, Place] {
  const m = viewOf(eye)
  const [bx, by, bz] = [m[2]!, m[6]!, m[10]!]
  const [dx, dy, dz] = [to[0] - from[0], to[1] - from[1], to[2] - from[2]]
  const long = Math.hypot(dx, dy, dz) || 1
  const size = Math.min(0.035, 0.4 * long) / long
  const side: Place = [dy * bz - dz * by, dz * bx - dx * bz, dx * by - dy * bx]
  const end = (sign: number): Place => [0, 1, 2].map((k) => to[k]! - size * ([dx, dy, dz][k]! + sign * 0.5 * side[k]!)) as Place
  return [end(1), end(-1)]
}
