/** The labels of a frame: which texts have room, and where they are. */

import type { Theme } from '../palette'
import { pathPoint, placeLabels, type Bounds, type Scene } from './scene'
import { RADIUS, RING_RADIUS, shownPredicting, STAR_RADIUS, tokenOpacity, type ProjectedScene, type Viewport } from './renderer'

export const MAX_LABELS = 512
/** Opacity of the label of a faded token. */
const FADED_LABEL = 0.65
/** Pixels between a point and its label. */
const GAP = 1

type Size = { width: number; height: number }
type SizeOf = (text: string) => Size | undefined

/** A label: its text, which begins `offset` pixels right of its point, and the box in pixels that no other label enters. */
export interface Label { text: string; kind: 'token' | 'path' | 'star' | 'axis'; point: ArrayLike<number>; offset: number; opacity: number; box: Bounds }

export const labelColour = (kind: Label['kind'], theme: Theme): string => ({ token: theme.ink, star: theme.ink, path: theme.accent, axis: theme.muted })[kind]

/**
 * Labels that do not overlap each other or the controls on the picture. The star comes first, then the axes, the predicting token,
 * its path, highlighted tokens, and tokens near the camera. `toPixels` projects points.
 */
export function visibleLabels(scene: Scene, projected: ProjectedScene, viewport: Viewport, toPixels: (points: Float32Array) => Float32Array, sizeOf: SizeOf): Label[] {
  const star = starLabel(scene, projected, viewport, sizeOf)
  const [predicting, others] = tokenLabels(scene, projected, viewport, sizeOf)
  const labels = [...star, ...[...axisLabels(scene, projected, sizeOf), ...predicting, ...pathLabels(scene, viewport, toPixels, sizeOf), ...others].filter(({ box }) => isInside(box, viewport))]
  const controls = viewport.controls.map((_, index) => -1 - index)
  const indices = [...labels.keys()]
  const order = [...indices.slice(0, star.length), ...controls, ...indices.slice(star.length)]
  const boxOf = (index: number) => ({ token: index, ...(index < 0 ? viewport.controls[-1 - index]! : labels[index]!.box) })
  return placeLabels(order, boxOf, viewport.width, viewport.height, MAX_LABELS).map(({ token }) => labels[token]!)
}

/** Whether a label is not cut at an edge. */
const isInside = (box: Bounds, { width, height }: Viewport): boolean => box.x >= 0 && box.y >= 0 && box.x + box.width <= width && box.y + box.height <= height

/** The place of a label right of its point or, where it would be cut at the right edge, left of it. */
function besidePoint(x: number, y: number, gap: number, { width, height }: Size, viewport: Viewport): Pick<Label, 'offset' | 'box'> {
  const offset = x + gap + width > viewport.width ? -gap - width : gap
  return { offset, box: { x: x + offset, y: y - height / 2, width, height } }
}

/** The label of the star, right of it or, if it would leave the picture or cover a control, left of it. */
function starLabel(scene: Scene, { star }: ProjectedScene, { width, controls }: Viewport, sizeOf: SizeOf): Label[] {
  const size = sizeOf(scene.starLabel)
  if (!star || !scene.star || !size) return []
  const height = Math.max(size.height, 2 * STAR_RADIUS)
  const label = (offset: number): Label => ({
    text: scene.starLabel, kind: 'star', point: scene.star!, offset, opacity: 1,
    box: { x: star[0]! + Math.min(offset, -STAR_RADIUS), y: star[1]! - height / 2, width: size.width + 2 * STAR_RADIUS, height },
  })
  const isFree = ({ box }: Label) => box.x >= 0 && box.x + box.width <= width && !controls.some((control) => overlap(box, control))
  const [right, left] = [label(STAR_RADIUS), label(-STAR_RADIUS - size.width)]
  return [isFree(left) && !isFree(right) ? left : right]
}

const overlap = (a: Bounds, b: Bounds): boolean => a.x < b.x + b.width && b.x < a.x + a.width && a.y < b.y + b.height && b.y < a.y + a.height

function axisLabels(scene: Scene, { axes }: ProjectedScene, sizeOf: SizeOf): Label[] {
  return axes.flatMap(({ segment, pixels }, index): Label[] => {
    const size = sizeOf(scene.axes[index] ?? '')
    if (!size || !scene.axes[index]) return []
    const offset = pixels[3]! < pixels[0]! ? -size.width - 2 : 2
    return [{ text: scene.axes[index]!, kind: 'axis', point: segment.slice(3), offset, opacity: 1, box: { x: pixels[3]! + offset, y: pixels[4]! - size.height / 2, ...size } }]
  })
}

/** The label of the predicting token, and those of the others. */
function tokenLabels(scene: Scene, { points, screen }: ProjectedScene, viewport: Viewport, sizeOf: SizeOf): [Label[], Label[]] {
  const tokens = Array.from({ length: scene.tokens }, (_, token) => token).filter((token) => tokenOpacity(scene, token) > 0 && screen[token * 3 + 2]! > 0)
  const priority = (token: number) => (scene.highlighted.has(token) ? -100 : scene.highlighted.size ? 100 : 0) + screen[token * 3 + 2]!
  const label = (token: number): Label[] => {
    const [text, size] = [scene.labels[token]!, sizeOf(scene.labels[token]!)]
    const gap = (token === scene.predicting ? RING_RADIUS : RADIUS) + GAP
    return size ? [{ text, kind: 'token', point: points.subarray(token * 3, token * 3 + 3), opacity: Math.max(tokenOpacity(scene, token), FADED_LABEL), ...besidePoint(screen[token * 3]!, screen[token * 3 + 1]!, gap, size, viewport) }] : []
  }
  const others = tokens.filter((token) => token !== scene.predicting).sort((a, b) => priority(a) - priority(b))
  return [tokens.filter((token) => token === scene.predicting).flatMap(label), others.flatMap(label)]
}

/** The words of the path up to the playhead, the last one first. */
function pathLabels(scene: Scene, viewport: Viewport, toPixels: (points: Float32Array) => Float32Array, sizeOf: SizeOf): Label[] {
  if (shownPredicting(scene) === null) return []
  return scene.pathWords.filter(({ step }) => step <= scene.playhead).reverse().flatMap((word): Label[] => {
    const [point, size] = [pathPoint(scene, word), sizeOf(word.text)]
    if (!size) return []
    const [x, y] = toPixels(point) as unknown as [number, number]
    return [{ text: word.text, kind: 'path', point, opacity: 1, ...besidePoint(x, y, RADIUS + GAP, size, viewport) }]
  })
}
