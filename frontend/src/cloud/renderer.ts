/** What the WebGL and the canvas renderer share: sizes, opacity, visible labels, and the token under the pointer. */

import type { Theme } from '../palette'
import { project, panCamera, pixelSize, type Camera } from './camera'
import { pathPoint, pointsAt, placeLabels, type Box, type PathWord, type Scene } from './scene'

export interface Viewport { width: number; height: number; ratio: number; theme: Theme }

export interface Renderer {
  draw(scene: Scene, camera: Camera, viewport: Viewport): void
  dispose(): void
}

export const RADIUS = 4.2
export const RING_RADIUS = 9
/** Radius of the dots along the trail of the predicting token. */
export const STEP_RADIUS = 3.4
/** Opacity of the trail of the predicting token. It does not fade, unlike other trails. */
export const PATH_OPACITY = 0.85
/** Opacity of the path of the predicting token before the edits. */
export const GHOST_OPACITY = 0.55
export const FADED_OPACITY = 0.3
/** Opacity of the label of a faded token. */
const FADED_LABEL = 0.65
export const MAX_LABELS = 512
const AXIS_LENGTH = 38
/** Distance of the axes from the left, which leaves room for their names, and from the bottom. */
const AXES_LEFT = 132
const AXES_BOTTOM = 96

/** Opacity of a token: 0 if it is hidden, low if other tokens are highlighted. */
export const tokenOpacity = (scene: Scene, token: number): number =>
  !scene.isShown(token) ? 0 : scene.highlighted.size === 0 || scene.highlighted.has(token) ? 1 : FADED_OPACITY

/** Points in space and in pixels, and the star of the prediction in pixels. */
export interface ProjectedScene { points: Float32Array; screen: Float32Array; star: Float32Array | null }
const STAR = -1
const STAR_SIZE = 11

export function projectScene(scene: Scene, camera: Camera, viewport: Viewport): ProjectedScene {
  const points = pointsAt(scene.points, scene.tokens, scene.playhead)
  const toPixels = (points: Float32Array) => project(points, camera, viewport.width, viewport.height)
  return { points, screen: toPixels(points), star: scene.star && toPixels(Float32Array.from(scene.star)) }
}

/** The predicting token, if it is shown. */
export const shownPredicting = (scene: Scene): number | null => (scene.predicting !== null && scene.isShown(scene.predicting) ? scene.predicting : null)

/** Steps of the predicting token before the playhead, as offsets of its points. */
export function pathOffsets(scene: Scene): number[] {
  const token = shownPredicting(scene)
  if (token === null || !scene.hasTrail(token)) return []
  return Array.from({ length: Math.ceil(scene.playhead) }, (_, step) => (step * scene.tokens + token) * 3)
}

/** The path before the edits, up to the playhead, as line segments. */
export function ghostSegments({ ghostPath, playhead }: Scene): [Float32Array, Float32Array][] {
  if (!ghostPath) return []
  const point = (step: number) => ghostPath.subarray(step * 3, step * 3 + 3)
  return Array.from({ length: Math.min(Math.ceil(playhead), ghostPath.length / 3 - 1) }, (_, step) => [point(step), point(step + 1)])
}

/** A label that is drawn: its text, the point it belongs to, and its distance from this point in pixels. */
export interface Label { box: Box; text: string; point: ArrayLike<number>; offset: number; opacity: number; isPathWord: boolean }

/** The words of the path up to the playhead. */
const reachedWords = (scene: Scene): PathWord[] => (shownPredicting(scene) === null ? [] : scene.pathWords.filter(({ step }) => step <= scene.playhead))

/**
 * Labels that have room next to that of the star: the predicting token first, then its path, then highlighted tokens, then those
 * near the camera. `toPixels` projects points.
 */
export function visibleLabels(scene: Scene, { points, screen, star }: ProjectedScene, viewport: Viewport, toPixels: (points: Float32Array) => Float32Array, sizeOf: (text: string) => { width: number; height: number } | undefined): Label[] {
  const words = reachedWords(scene)
  const wordPoints = words.map((word) => pathPoint(scene, word))
  const wordPixels = wordPoints.map(toPixels)
  const order: number[] = []
  for (let token = 0; token < scene.tokens; token++) if (tokenOpacity(scene, token) > 0 && screen[token * 3 + 2]! > 0) order.push(token)
  const priority = (token: number) => (token === scene.predicting ? -200 : scene.highlighted.has(token) ? -100 : scene.highlighted.size ? 100 : 0) + screen[token * 3 + 2]!
  order.sort((a, b) => priority(a) - priority(b))
  // A token is identified by its position, and a word of the path by the number of tokens plus its index.
  const textOf = (token: number): string => (token < scene.tokens ? scene.labels[token]! : words[token - scene.tokens]!.text)
  const offsetOf = (token: number): number => (token === scene.predicting ? RING_RADIUS : RADIUS) + 1
  const boxOf = (token: number): Box | null => {
    if (token === STAR) {
      const size = sizeOf(scene.starLabel)
      return star && size ? { token, x: star[0]! - STAR_SIZE, y: star[1]! - Math.max(size.height / 2, STAR_SIZE), width: 2 * STAR_SIZE + size.width, height: Math.max(size.height, 2 * STAR_SIZE) } : null
    }
    const size = sizeOf(textOf(token))
    if (!size) return null
    const [pixels, start] = token < scene.tokens ? [screen, token * 3] : [wordPixels[token - scene.tokens]!, 0]
    return { token, x: pixels[start]! + offsetOf(token), y: pixels[start + 1]! - size.height / 2, ...size }
  }
  const [predicting, others] = order[0] === scene.predicting ? [order.slice(0, 1), order.slice(1)] : [[], order]
  const path = words.map((_, index) => scene.tokens + index).reverse()
  return placeLabels([STAR, ...predicting, ...path, ...others], boxOf, viewport.width, viewport.height, MAX_LABELS).map((box) => {
    const isPathWord = box.token >= scene.tokens
    const point = isPathWord ? wordPoints[box.token - scene.tokens]! : points.subarray(box.token * 3, box.token * 3 + 3)
    return { box, text: textOf(box.token), point, offset: offsetOf(box.token), opacity: isPathWord ? 1 : Math.max(tokenOpacity(scene, box.token), FADED_LABEL), isPathWord }
  })
}

/** The token nearest to a pixel, within reach. */
export function tokenAt(screen: Float32Array, x: number, y: number, isShown: (token: number) => boolean, reach = 14): number | null {
  let [nearest, smallest] = [-1, reach * reach]
  for (let token = 0; token * 3 < screen.length; token++) {
    const [dx, dy] = [screen[token * 3]! - x, screen[token * 3 + 1]! - y]
    const distance = dx * dx + dy * dy
    if (distance < smallest && screen[token * 3 + 2]! > 0 && isShown(token)) [nearest, smallest] = [token, distance]
  }
  return nearest < 0 ? null : nearest
}

/** Three short axes in the lower left corner that rotate with the cloud. Their names are at their ends. */
export function axisSegments(camera: Camera, { width, height }: Viewport): number[][] {
  const { x, y, z } = panCamera(camera, width / 2 - AXES_LEFT, AXES_BOTTOM - height / 2, width, height)
  const length = AXIS_LENGTH * pixelSize(camera, width, height)
  return [0, 1, 2].map((k) => [x, y, z, x + (k === 0 ? length : 0), y + (k === 1 ? length : 0), z + (k === 2 ? length : 0)])
}
