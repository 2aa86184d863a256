/** What the WebGL and the canvas renderer share: sizes, opacity, visible labels, and the token under the pointer. */

import type { Theme } from '../palette'
import { project, panCamera, pixelSize, type Camera } from './camera'
import { pointsAt, placeLabels, type Box, type Scene } from './scene'

export interface Viewport { width: number; height: number; ratio: number; theme: Theme }

export interface Renderer {
  draw(scene: Scene, camera: Camera, viewport: Viewport): void
  dispose(): void
}

export const RADIUS = 4.2
export const FADED_OPACITY = 0.16
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

/** Labels that have room next to that of the star: highlighted tokens first, then those near the camera. */
export function visibleLabels(scene: Scene, { screen, star }: ProjectedScene, viewport: Viewport, sizeOf: (text: string) => { width: number; height: number } | undefined): Box[] {
  const order: number[] = []
  for (let token = 0; token < scene.tokens; token++) if (tokenOpacity(scene, token) > 0 && screen[token * 3 + 2]! > 0) order.push(token)
  const priority = (token: number) => (scene.highlighted.has(token) ? -100 : scene.highlighted.size ? 100 : 0) + screen[token * 3 + 2]!
  order.sort((a, b) => priority(a) - priority(b))
  const boxOf = (token: number): Box | null => {
    if (token === STAR) {
      const size = sizeOf(scene.starLabel)
      return star && size ? { token, x: star[0]! - STAR_SIZE, y: star[1]! - Math.max(size.height / 2, STAR_SIZE), width: 2 * STAR_SIZE + size.width, height: Math.max(size.height, 2 * STAR_SIZE) } : null
    }
    const size = sizeOf(scene.labels[token]!)
    if (!size) return null
    return { token, x: screen[token * 3]! + RADIUS + 1, y: screen[token * 3 + 1]! - size.height / 2, ...size }
  }
  return placeLabels([STAR, ...order], boxOf, viewport.width, viewport.height, MAX_LABELS)
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
