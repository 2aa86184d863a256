/** The two clouds of a comparison, ready for one camera. */

import { aligningRotation, rotatePoints } from '../cloud/align_clouds'
import { boundingBall, pointsAt, scaleToBall, stepFrames, type Ball, type Scene } from '../cloud/scene'
import type { Points, TraceInfo } from '../api'

export interface CloudSide { info: TraceInfo; points: Points }
/** Scaled points of all steps, the star of the prediction, and the frame of every step. */
export interface ComparedCloud { points: Float32Array; star: Scene['star']; frames: Ball[] }
type IsShown = (token: number) => boolean

/** A star farther away than this would shrink the cloud. */
const FARTHEST_STAR = 3

/** The step of a cloud with `steps` steps at the same relative depth. */
export const sameDepth = (playhead: number, steps: number, shownSteps: number): number => (playhead * (steps - 1)) / Math.max(1, shownSteps - 1)

/** Whether both sides have the same tokens. */
export const hasSameTokens = ([first, second]: readonly CloudSide[]): boolean =>
  first!.info.tokens.length === second!.info.tokens.length && first!.info.tokens.every(({ text }, token) => text === second!.info.tokens[token]!.text)

/** Two clouds in one space, with one scale and one frame, so that distances can be compared. */
export function cloudsInOneSpace(sides: readonly CloudSide[], isShown: readonly IsShown[]): ComparedCloud[] {
  const joined = joinClouds(sides.map(({ points }) => points))
  const [first] = sides.map(({ points }) => points.tokens)
  const isJoinedShown: IsShown = (token) => (token < first! ? isShown[0]!(token) : isShown[1]!(token - first!))
  const ball = boundingBall(joined, isJoinedShown, joined.tokens)
  const stars = sides.map(({ points }) => scaledStar(points, ball))
  const frames = stepFrames(scaleToBall(joined, ball), joined.tokens, isJoinedShown, stars[1]!)
  return sides.map(({ points }, index) => ({ points: scaleToBall(points, ball), star: stars[index]!, frames }))
}

/** Two clouds of two models without a common space: each with its own scale and frames. The first is rotated to match the second where they have the same tokens. */
export function cloudsOfTwoModels(sides: readonly CloudSide[], isShown: readonly IsShown[]): ComparedCloud[] {
  const [first, second] = sides.map(({ points }, index) => {
    const ball = boundingBall(points, isShown[index]!, points.tokens)
    return { points: scaleToBall(points, ball), star: scaledStar(points, ball), tokens: points.tokens, steps: points.steps }
  })
  const rotation = hasSameTokens(sides) ? aligningRotation(atDepthsOf(first!, second!.steps), second!.points) : null
  const rotated = rotation ? { ...first!, points: rotatePoints(first!.points, rotation), star: first!.star && ([...rotatePoints(Float32Array.from(first!.star), rotation)] as Scene['star']) } : first!
  return [rotated, second!].map(({ points, star, tokens }, index) => ({ points, star, frames: stepFrames(points, tokens, isShown[index]!, star) }))
}

/** The points of a cloud at the relative depths of `steps` steps. */
function atDepthsOf({ points, tokens, steps }: { points: Float32Array; tokens: number; steps: number }, newSteps: number): Float32Array {
  const out = new Float32Array(newSteps * tokens * 3)
  for (let step = 0; step < newSteps; step++) out.set(pointsAt(points, tokens, sameDepth(step, steps, newSteps)), step * tokens * 3)
  return out
}

/** The tokens of both clouds as one cloud, step by step. */
function joinClouds([first, second]: Points[]): Points {
  const tokens = first!.tokens + second!.tokens
  const points = new Float32Array(first!.steps * tokens * 3)
  for (let step = 0; step < first!.steps; step++) {
    points.set(first!.points.subarray(step * first!.tokens * 3, (step + 1) * first!.tokens * 3), step * tokens * 3)
    points.set(second!.points.subarray(step * second!.tokens * 3, (step + 1) * second!.tokens * 3), (step * tokens + first!.tokens) * 3)
  }
  return { ...first!, points, tokens }
}

function scaledStar({ star }: Points, ball: Ball): Scene['star'] {
  if (!star) return null
  const point: Scene['star'] = [(star[0]! - ball.x) / ball.size, (star[1]! - ball.y) / ball.size, (star[2]! - ball.z) / ball.size]
  return Math.hypot(...point) < FARTHEST_STAR ? point : null
}

/** The tokens of another text to highlight: those at the same positions, or in another text those with the same words. */
export function highlightedTokens(highlighted: Set<number>, shown: TraceInfo, other: TraceInfo, isSameText: boolean): Set<number> {
  if (isSameText) return highlighted
  const words = new Set([...highlighted].map((token) => shown.tokens[token]?.text))
  return new Set(other.tokens.flatMap(({ text }, token) => (words.has(text) ? [token] : [])))
}
