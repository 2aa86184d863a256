/** The cloud that a head reads (E) and its three images, on one canvas. */

import { shortenText } from '../cloud/text_atlas'
import { PALETTE, type Theme } from '../palette'
import type { Image, Images, Pair } from '../api'

export const PANELS = ['E', 'query', 'key', 'content'] as const
export type Panel = (typeof PANELS)[number]
export const SEPARATED_COLOUR = PALETTE.second!
export const MERGED_COLOUR = PALETTE.first!
const TOP = 18
const PADDING = 14

export interface PanelSquare { panel: Panel; x: number; y: number; size: number }

/** Four squares in a row, or two by two on a narrow page. */
export function panelSquares(width: number): { panels: PanelSquare[]; height: number } {
  const columns = width >= 560 ? 4 : 2
  const gap = 12
  const size = Math.max(60, (width - gap * (columns - 1)) / columns)
  const panels = PANELS.map((panel, index) => ({ panel, x: (index % columns) * (size + gap), y: Math.floor(index / columns) * (size + TOP + gap) + TOP, size }))
  return { panels, height: Math.ceil((PANELS.length / columns) * (size + TOP + gap)) }
}

/** Centre and scale that fit points into a square, with equal units on both axes. */
function fitToSquare(values: Float32Array, size: number): { centre: [number, number]; scale: number } {
  const ranges = [0, 1].map((axis) => {
    const coordinates = values.filter((value, index) => index % 2 === axis && Number.isFinite(value))
    return coordinates.length ? [coordinates.reduce((a, b) => Math.min(a, b)), coordinates.reduce((a, b) => Math.max(a, b))] : [0, 0]
  }) as [[number, number], [number, number]]
  const range = Math.max(ranges[0][1] - ranges[0][0], ranges[1][1] - ranges[1][0]) || 1
  return { centre: ranges.map(([low, high]) => (low + high) / 2) as [number, number], scale: (size - 2 * PADDING) / range }
}

/** Pixel positions (x, y) of points in a square that is fitted to `reference`; NaN for omitted tokens. */
function toSquare(values: Float32Array, reference: Float32Array, { x, y, size }: PanelSquare): Float32Array {
  const { centre, scale } = fitToSquare(reference, size)
  return values.map((value, index) => (index % 2 === 0 ? x + size / 2 + (value - centre[0]) * scale : y + size / 2 - (value - centre[1]) * scale))
}

/** Pixel positions of the tokens in a square. With an image from before the edits, both fit into it. */
export function dotPositions(images: Images, square: PanelSquare, before: Images | null = null): Float32Array {
  const values = images.flat[square.panel].values
  return toSquare(values, before ? beforeAndAfter(before, images, square.panel) : values, square)
}

/** Pixel positions of the tokens before the edits, aligned with their current positions. */
export const dotPositionsBefore = (before: Images, after: Images, square: PanelSquare): Float32Array =>
  toSquare(alignTo(before.flat[square.panel].values, after.flat[square.panel].values), beforeAndAfter(before, after, square.panel), square)

const beforeAndAfter = (before: Images, after: Images, panel: Panel): Float32Array =>
  Float32Array.of(...after.flat[panel].values, ...alignTo(before.flat[panel].values, after.flat[panel].values))

/** Rotates (and mirrors) points onto other points of the same tokens (Procrustes in the plane). Distances stay the same. */
export function alignTo(values: Float32Array, target: Float32Array): Float32Array {
  const tokens = Array.from({ length: values.length / 2 }, (_, token) => token).filter((token) => Number.isFinite(values[token * 2]!) && Number.isFinite(target[token * 2]!))
  const mean = (values: Float32Array, axis: number) => tokens.reduce((sum, token) => sum + values[token * 2 + axis]!, 0) / (tokens.length || 1)
  const [ox, oy, gx, gy] = [mean(values, 0), mean(values, 1), mean(target, 0), mean(target, 1)]
  const rotation = (mirror: number): [number, number] => tokens.reduce(([c, s], token) => {
    const [x, y, u, v] = [values[token * 2]! - ox, mirror * (values[token * 2 + 1]! - oy), target[token * 2]! - gx, target[token * 2 + 1]! - gy]
    return [c + x * u + y * v, s + x * v - y * u] as [number, number]
  }, [0, 0] as [number, number])
  const [plain, mirrored] = [rotation(1), rotation(-1)]
  const mirror = Math.hypot(...mirrored) > Math.hypot(...plain) ? -1 : 1
  const [c, s] = mirror < 0 ? mirrored : plain
  const norm = Math.hypot(c, s) || 1
  return values.map((_, index) => {
    const [x, y] = [values[index - (index % 2)]! - ox, mirror * (values[index - (index % 2) + 1]! - oy)]
    return index % 2 === 0 ? gx + (c * x - s * y) / norm : gy + (s * x + c * y) / norm
  })
}

export function nearestToken(positions: Float32Array, x: number, y: number, range = 12): number | null {
  let [nearest, smallest] = [-1, range * range]
  for (let token = 0; token * 2 < positions.length; token++) {
    const distance = (positions[token * 2]! - x) ** 2 + (positions[token * 2 + 1]! - y) ** 2
    if (distance < smallest) [nearest, smallest] = [token, distance]
  }
  return nearest < 0 ? null : nearest
}

export interface DrawOptions { width: number; ratio: number; theme: Theme; image: Image; highlighted: Set<number>; titles: Record<Panel, string>; texts: string[]; before: Images | null }

export function drawImages(canvas: HTMLCanvasElement, images: Images, options: DrawOptions): void {
  const { panels, height } = panelSquares(options.width)
  const context = canvas.getContext('2d')!
  canvas.width = options.width * options.ratio
  canvas.height = height * options.ratio
  context.scale(options.ratio, options.ratio)
  context.textBaseline = 'middle'
  for (const square of panels) {
    context.font = `${square.panel === options.image ? 650 : 450} 12px system-ui, sans-serif`
    context.fillStyle = options.theme.ink
    context.fillText(options.titles[square.panel], square.x, square.y - TOP / 2)
    context.strokeStyle = options.theme.line
    context.strokeRect(square.x + 0.5, square.y + 0.5, square.size - 1, square.size - 1)
    const positions = dotPositions(images, square, options.before)
    if (options.before) drawDisplacements(context, dotPositionsBefore(options.before, images, square), positions, options)
    const hasPairs = square.panel === 'E' || square.panel === options.image
    if (hasPairs) for (const [kind, colour] of [['separated', SEPARATED_COLOUR], ['merged', MERGED_COLOUR]] as const) drawPairs(context, images.pairs[options.image][kind], positions, colour)
    drawDots(context, positions, options)
    if (hasPairs) drawNames(context, positions, square, images, options)
  }
}

function drawPairs(context: CanvasRenderingContext2D, pairs: Pair[], positions: Float32Array, colour: string): void {
  context.strokeStyle = colour
  context.lineWidth = 1.6
  for (const { first, second } of pairs) {
    context.beginPath()
    context.moveTo(positions[first * 2]!, positions[first * 2 + 1]!)
    context.lineTo(positions[second * 2]!, positions[second * 2 + 1]!)
    context.stroke()
  }
  context.lineWidth = 1
}

/** Rings at the positions before the edits, and lines from there to the current ones. */
function drawDisplacements(context: CanvasRenderingContext2D, from: Float32Array, to: Float32Array, options: DrawOptions): void {
  context.strokeStyle = options.theme.muted
  for (let token = 0; token * 2 < from.length; token++) {
    if (!Number.isFinite(from[token * 2]!) || !Number.isFinite(to[token * 2]!)) continue
    context.globalAlpha = options.highlighted.size && !options.highlighted.has(token) ? 0.2 : 0.7
    context.beginPath()
    context.arc(from[token * 2]!, from[token * 2 + 1]!, 2.2, 0, 2 * Math.PI)
    context.moveTo(from[token * 2]!, from[token * 2 + 1]!)
    context.lineTo(to[token * 2]!, to[token * 2 + 1]!)
    context.stroke()
  }
  context.globalAlpha = 1
}

function drawDots(context: CanvasRenderingContext2D, positions: Float32Array, options: DrawOptions): void {
  const hasHighlight = options.highlighted.size > 0
  for (let token = 0; token * 2 < positions.length; token++) {
    if (!Number.isFinite(positions[token * 2]!)) continue
    const isHighlighted = options.highlighted.has(token)
    context.globalAlpha = hasHighlight && !isHighlighted ? 0.35 : 0.9
    context.fillStyle = isHighlighted ? options.theme.ink : options.theme.muted
    context.beginPath()
    context.arc(positions[token * 2]!, positions[token * 2 + 1]!, isHighlighted ? 4 : 2.2, 0, 2 * Math.PI)
    context.fill()
  }
  context.globalAlpha = 1
}

/** Names of highlighted tokens, else of the tokens in the pairs, if there is room for them. */
function drawNames(context: CanvasRenderingContext2D, positions: Float32Array, { x, y, size }: PanelSquare, images: Images, options: DrawOptions): void {
  const { separated, merged } = images.pairs[options.image]
  const tokens = options.highlighted.size ? [...options.highlighted] : [...separated, ...merged].flatMap(({ first, second }) => [first, second])
  const occupied: [number, number, number][] = []
  context.font = '10.5px system-ui, sans-serif'
  for (const token of new Set(tokens)) {
    const text = shortenText(options.texts[token] ?? '')
    const width = context.measureText(text).width
    const left = Math.min(positions[token * 2]! + 5, x + size - width - 3)
    const centre = Math.max(y + 7, Math.min(y + size - 7, positions[token * 2 + 1]! - 6))
    if (!Number.isFinite(left) || occupied.some(([a, b, w]) => Math.abs(b - centre) < 11 && left < a + w && a < left + width)) continue
    occupied.push([left, centre, width])
    context.lineWidth = 3
    context.strokeStyle = options.theme.paper
    context.strokeText(text, left, centre)
    context.lineWidth = 1
    context.fillStyle = options.theme.ink
    context.fillText(text, left, centre)
  }
}

/** Rows of a table: the coordinates of every token in each of the four images. */
export function* imageRows(images: Images, texts: string[]): Generator<(string | number)[]> {
  for (const panel of PANELS) {
    const { values } = images.flat[panel]
    for (let token = 0; token * 2 < values.length; token++) yield [panel, token, texts[token] ?? '', values[token * 2]!, values[token * 2 + 1]!]
  }
}
