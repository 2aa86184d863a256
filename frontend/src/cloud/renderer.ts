/** What the WebGL and the canvas renderer share: sizes, opacity, visible labels, and the token under the pointer. */

import type { Theme } from '../palette'
import { projector, panCamera, pixelSize, type Camera } from './camera'
import { pointsAt, type Bounds, type Scene } from './scene'

/** The picture in pixels. `controls` are the parts of it that HTML elements cover. */
export interface Viewport { width: number; height: number; ratio: number; theme: Theme; controls: Bounds[] }

export interface Renderer {
  draw(scene: Scene, camera: Camera, viewport: Viewport): void
  dispose(): void
}

export const RADIUS = 4.2
export const RING_RADIUS = 9
export const STAR_RADIUS = 11
/** Radius of the dots along the trail of the predicting token. */
export const STEP_RADIUS = 3.4
/** Opacity of the trail of the predicting token. It does not fade, unlike other trails. */
export const PATH_OPACITY = 0.85
/** Opacity of the path of the predicting token before the edits. */
export const GHOST_OPACITY = 0.55
export const FADED_OPACITY = 0.3
const AXIS_LENGTH = 38
/** Distance of the axes from the right, which leaves room for their names, and from the bottom. The path of the prediction begins on the left. */
const AXES_RIGHT = 136
const AXES_BOTTOM = 96

/** Opacity of a token: 0 if it is hidden, low if other tokens are highlighted. */
export const tokenOpacity = (scene: Scene, token: number): number =>
  !scene.isShown(token) ? 0 : scene.highlighted.size === 0 || scene.highlighted.has(token) ? 1 : FADED_OPACITY

/** Points in space and in pixels, the star of the prediction in pixels, and the axes in space and in pixels. */
export interface ProjectedScene { points: Float32Array; screen: Float32Array; star: Float32Array | null; axes: { segment: number[]; pixels: Float32Array }[] }

export function projectScene(scene: Scene, camera: Camera, viewport: Viewport): ProjectedScene {
  const points = pointsAt(scene.points, scene.tokens, scene.playhead)
  const toPixels = projector(camera, viewport.width, viewport.height)
  return { points, screen: toPixels(points), star: scene.star && toPixels(Float32Array.from(scene.star)), axes: axisSegments(camera, viewport).map((segment) => ({ segment, pixels: toPixels(Float32Array.from(segment)) })) }
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

/** A smaller picture has no room for axes. Their names are below it. */
const SMALLEST_WITH_AXES = { width: 480, height: 300 }

/** Three short axes in the lower right corner that rotate with the cloud. Their names are at their ends. */
export function axisSegments(camera: Camera, { width, height }: Viewport): number[][] {
  if (width < SMALLEST_WITH_AXES.width || height < SMALLEST_WITH_AXES.height) return []
  const { x, y, z } = panCamera(camera, AXES_RIGHT - width / 2, AXES_BOTTOM - height / 2, width, height)
  const length = AXIS_LENGTH * pixelSize(camera, width, height)
  return [0, 1, 2].map((k) => [x, y, z, x + (k === 0 ? length : 0), y + (k === 1 ? length : 0), z + (k === 2 ? length : 0)])
}
