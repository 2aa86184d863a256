/** The labels of a frame: which texts have room, and where they are. */

import type { Theme } from '../palette'
import { overlap, pathPoint, placeLabels, type Bounds, type Scene } from './scene'
import { RADIUS, RING_RADIUS, shownPredicting, STAR_RADIUS, tokenOpacity, type ProjectedScene, type Viewport } from './renderer'

export const MAX_LABELS = 512
/** Opacity of the label of a faded token. */
const FADED_LABEL = 0.65
/** Pixels between a point and its label. */
const GAP = 1

type Size = { width: number; height: number }
type SizeOf = (text: string) => Size | undefined

/** A label: its text, which begins `offset` pixels right of its point and `drop` pixels below it, and the box in pixels that no other label enters. */
export interface Label { text: string; kind: 'token' | 'path' | 'star' | 'axis'; point: ArrayLike<number>; offset: number; drop: number; opacity: number; box: Bounds }
type Place = Pick<Label, 'offset' | 'drop' | 'box'>

export const labelColour = (kind: Label['kind'], theme: Theme): string => ({ token: theme.ink, star: theme.ink, path: theme.accent, axis: theme.muted })[kind]

/**
 * Labels that do not overlap each other or the controls on the picture. The star comes first, then the axes, the predicting token,
 * its path, highlighted tokens, and tokens near the camera. A word of the path takes the first free side of its point. `toPixels` projects points.
 */
export function visibleLabels(scene: Scene, projected: ProjectedScene, viewport: Viewport, toPixels: (points: Float32Array) => Float32Array, sizeOf: SizeOf): Label[] {
  const star = starLabel(scene, projected, viewport, sizeOf)
  const [predicting, others] = tokenLabels(scene, projected, viewport, sizeOf)
  const singlePlace = (label: Label): Label[] => [label]
  const labels = [
    ...star.map(singlePlace),
    ...[...axisLabels(scene, projected, sizeOf).map(singlePlace), ...predicting.map(singlePlace), ...pathLabels(scene, toPixels, sizeOf), ...others.map(singlePlace)].map((places) => places.filter(({ box }) => isInside(box, viewport))),
  ]
  const controls = viewport.controls.map((_, index) => -1 - index)
  const indices = [...labels.keys()]
  const order = [...indices.slice(0, star.length), ...controls, ...indices.slice(star.length)]
  const placesOf = (index: number) => (index < 0 ? [viewport.controls[-1 - index]!] : labels[index]!.map(({ box }) => box))
  return placeLabels(order, placesOf, viewport.width, viewport.height, MAX_LABELS).map(({ token, choice }) => labels[token]![choice]!)
}

/** Whether a label is not cut at an edge. */
const isInside = (box: Bounds, { width, height }: Viewport): boolean => box.x >= 0 && box.y >= 0 && box.x + box.width <= width && box.y + box.height <= height

/** The place of a label right of its point or, where it would be cut at the right edge, left of it. */
function besidePoint(x: number, y: number, gap: number, size: Size, viewport: Viewport): Place {
  const { right, left } = placesAround(x, y, gap, size)
  return x + gap + size.width > viewport.width ? left : right
}

/** The places of a label on the four sides of its point. */
function placesAround(x: number, y: number, gap: number, { width, height }: Size): Record<'right' | 'left' | 'below' | 'above', Place> {
  const place = (offset: number, drop: number): Place => ({ offset, drop, box: { x: x + offset, y: y + drop - height / 2, width, height } })
  const step = gap + height / 2
  return { right: place(gap, 0), left: place(-gap - width, 0), below: place(-width / 2, step), above: place(-width / 2, -step) }
}

/** The label of the star, at the first of its sides where it neither leaves the picture nor covers a control. Its box contains the star. */
function starLabel(scene: Scene, { star }: ProjectedScene, viewport: Viewport, sizeOf: SizeOf): Label[] {
  const size = sizeOf(scene.starLabel)
  if (!star || !scene.star || !size) return []
  const [x, y] = [star[0]!, star[1]!]
  const { right, left, below, above } = placesAround(x, y, STAR_RADIUS, size)
  const farBelow: Place = { ...below, drop: below.drop + size.height / 2, box: { ...below.box, y: below.box.y + size.height / 2 } }
  const labels = [right, left, below, farBelow, above].map(({ box, ...place }): Label => ({ text: scene.starLabel, kind: 'star', point: scene.star!, opacity: 1, ...place, box: withStar(box, x, y) }))
  const isFree = ({ offset, drop }: Label) => {
    const text = { x: x + offset, y: y + drop - size.height / 2, ...size }
    return isInside(text, viewport) && !viewport.controls.some((control) => overlap(text, control))
  }
  return [labels.find(isFree) ?? labels[0]!]
}

function withStar(box: Bounds, starX: number, starY: number): Bounds {
  const [x, y] = [Math.min(box.x, starX - STAR_RADIUS), Math.min(box.y, starY - STAR_RADIUS)]
  return { x, y, width: Math.max(box.x + box.width, starX + STAR_RADIUS) - x, height: Math.max(box.y + box.height, starY + STAR_RADIUS) - y }
}

function axisLabels(scene: Scene, { axes }: ProjectedScene, sizeOf: SizeOf): Label[] {
  return axes.flatMap(({ segment, pixels }, index): Label[] => {
    const size = sizeOf(scene.axes[index] ?? '')
    if (!size || !scene.axes[index]) return []
    const offset = pixels[3]! < pixels[0]! ? -size.width - 2 : 2
    return [{ text: scene.axes[index]!, kind: 'axis', point: segment.slice(3), offset, drop: 0, opacity: 1, box: { x: pixels[3]! + offset, y: pixels[4]! - size.height / 2, ...size } }]
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

/** The words of the path up to the playhead, the last one first, each with the four sides of its point. */
function pathLabels(scene: Scene, toPixels: (points: Float32Array) => Float32Array, sizeOf: SizeOf): Label[][] {
  if (shownPredicting(scene) === null) return []
  return scene.pathWords.filter(({ step }) => step <= scene.playhead).reverse().flatMap((word): Label[][] => {
    const [point, size] = [pathPoint(scene, word), sizeOf(word.text)]
    if (!size) return []
    const [x, y] = toPixels(point) as unknown as [number, number]
    const { right, below, above, left } = placesAround(x, y, (word.step === scene.playhead ? RING_RADIUS : RADIUS) + GAP, size)
    return [[right, below, above, left].map((place): Label => ({ text: word.text, kind: 'path', point, opacity: 1, ...place }))]
  })
}
