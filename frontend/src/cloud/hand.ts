/** What both hands share: sizes, which labels there is room for, who stands under the pointer. */

import type { Theme } from '../palette'
import { project, slid, unitOf, type Eye } from './camera'
import { cloudAt, decluttered, type Box, type Scene } from './frame'

export interface Sheet { width: number; height: number; ratio: number; theme: Theme }

export interface Hand {
  draw(scene: Scene, eye: Eye, sheet: Sheet): void
  dispose(): void
}

export const RADIUS = 4.2
export const FADED = 0.16
export const MOST_LABELS = 512
const AXIS = 38
/** How far their middle is from the left, where names have room, and from below. */
const LEFT = 132
const BELOW = 96

/** How strongly a token is drawn. */
export const strength = (scene: Scene, token: number): number =>
  !scene.shown(token) ? 0 : scene.bright.size === 0 || scene.bright.has(token) ? 1 : FADED

/** Points in the ball and on the sheet, and where the star of the prediction is on it. */
export interface Placed { places: Float32Array; screen: Float32Array; star: Float32Array | null }
const STAR = -1
const STAR_SIZE = 11

export function placed(scene: Scene, eye: Eye, sheet: Sheet): Placed {
  const places = cloudAt(scene.all, scene.tokens, scene.at)
  const onSheet = (points: Float32Array) => project(points, eye, sheet.width, sheet.height)
  return { places, screen: onSheet(places), star: scene.star && onSheet(Float32Array.from(scene.star)) }
}

/** Labels with room beside that of the star, bright tokens first, then those near the eye. */
export function labelled(scene: Scene, { screen, star }: Placed, sheet: Sheet, sizeOf: (text: string) => { width: number; height: number } | undefined): Box[] {
  const order: number[] = []
  for (let token = 0; token < scene.tokens; token++) if (strength(scene, token) > 0 && screen[token * 3 + 2]! > 0) order.push(token)
  const rank = (token: number) => (scene.bright.has(token) ? -100 : scene.bright.size ? 100 : 0) + screen[token * 3 + 2]!
  order.sort((a, b) => rank(a) - rank(b))
  const boxOf = (token: number): Box | null => {
    if (token === STAR) {
      const size = sizeOf(scene.starLabel)
      return star && size ? { token, x: star[0]! - STAR_SIZE, y: star[1]! - Math.max(size.height / 2, STAR_SIZE), width: 2 * STAR_SIZE + size.width, height: Math.max(size.height, 2 * STAR_SIZE) } : null
    }
    const size = sizeOf(scene.labels[token]!)
    if (!size) return null
    return { token, x: screen[token * 3]! + RADIUS + 1, y: screen[token * 3 + 1]! - size.height / 2, ...size }
  }
  return decluttered([STAR, ...order], boxOf, sheet.width, sheet.height, MOST_LABELS)
}

/** The token nearest to a place on the sheet, within reach. */
export function under(screen: Float32Array, x: number, y: number, shown: (token: number) => boolean, reach = 14): number | null {
  let [best, least] = [-1, reach * reach]
  for (let token = 0; token * 3 < screen.length; token++) {
    const [dx, dy] = [screen[token * 3]! - x, screen[token * 3 + 1]! - y]
    const far = dx * dx + dy * dy
    if (far < least && screen[token * 3 + 2]! > 0 && shown(token)) [best, least] = [token, far]
  }
  return best < 0 ? null : best
}

/** Three short axes in the lower left corner that turn with the cloud; each ends where its name stands. */
export function axisLines(eye: Eye, { width, height }: Sheet): number[][] {
  const { x, y, z } = slid(eye, width / 2 - LEFT, BELOW - height / 2, width, height)
  const long = AXIS * unitOf(eye, width, height)
  return [0, 1, 2].map((k) => [x, y, z, x + (k === 0 ? long : 0), y + (k === 1 ? long : 0), z + (k === 2 ? long : 0)])
}
