/** The cloud that a head reads beside how it sees it, on one canvas: four small pictures of the same tokens. */

import { shortened } from '../cloud/words'
import { PALETTE, type Theme } from '../palette'
import type { Image, Images, Pair } from '../wire'

export const PANELS = ['E', 'query', 'key', 'content'] as const
export type Panel = (typeof PANELS)[number]
export const TORN = PALETTE.second!
export const GLUED = PALETTE.first!
const TOP = 18
const EDGE = 14

export interface Placed { panel: Panel; x: number; y: number; size: number }

/** Four squares in a row where there is room for them, else two by two. */
export function placed(width: number): { panels: Placed[]; height: number } {
  const columns = width >= 560 ? 4 : 2
  const gap = 12
  const size = Math.max(60, (width - gap * (columns - 1)) / columns)
  const panels = PANELS.map((panel, at) => ({ panel, x: (at % columns) * (size + gap), y: Math.floor(at / columns) * (size + TOP + gap) + TOP, size }))
  return { panels, height: Math.ceil((PANELS.length / columns) * (size + TOP + gap)) }
}

/** How the values of a picture lie in their square: equally long on both axes. */
function fitted(values: Float32Array, size: number): { middle: [number, number]; unit: number } {
  const ends = [0, 1].map((axis) => {
    const along = values.filter((value, at) => at % 2 === axis && Number.isFinite(value))
    return along.length ? [along.reduce((a, b) => Math.min(a, b)), along.reduce((a, b) => Math.max(a, b))] : [0, 0]
  }) as [[number, number], [number, number]]
  const reach = Math.max(ends[0][1] - ends[0][0], ends[1][1] - ends[1][0]) || 1
  return { middle: ends.map(([low, high]) => (low + high) / 2) as [number, number], unit: (size - 2 * EDGE) / reach }
}

/** Places of the tokens in their square (x, y each); NaN for tokens that are left out. Other values lie there as `own` do. */
function laid(values: Float32Array, own: Float32Array, { x, y, size }: Placed): Float32Array {
  const { middle, unit } = fitted(own, size)
  return values.map((value, at) => (at % 2 === 0 ? x + size / 2 + (value - middle[0]) * unit : y + size / 2 - (value - middle[1]) * unit))
}

/** Where tokens lie in a square; where there is a picture from before, in the square that both fit into. */
export function dots(images: Images, at: Placed, before: Images | null = null): Float32Array {
  const own = images.flat[at.panel].values
  return laid(own, before ? both(before, images, at.panel) : own, at)
}

/** Where tokens lay in the same square before, turned (and mirrored) to lie as near to where they are as they can. */
export const dotsBefore = (before: Images, after: Images, at: Placed): Float32Array =>
  laid(turnedTo(before.flat[at.panel].values, after.flat[at.panel].values), both(before, after, at.panel), at)

const both = (before: Images, after: Images, panel: Panel): Float32Array =>
  Float32Array.of(...after.flat[panel].values, ...turnedTo(before.flat[panel].values, after.flat[panel].values))

/** One picture of some tokens turned to lie on another of the same tokens (Procrustes in the plane): no distance changes. */
export function turnedTo(own: Float32Array, goal: Float32Array): Float32Array {
  const tokens = Array.from({ length: own.length / 2 }, (_, token) => token).filter((token) => Number.isFinite(own[token * 2]!) && Number.isFinite(goal[token * 2]!))
  const mean = (values: Float32Array, axis: number) => tokens.reduce((sum, token) => sum + values[token * 2 + axis]!, 0) / (tokens.length || 1)
  const [ox, oy, gx, gy] = [mean(own, 0), mean(own, 1), mean(goal, 0), mean(goal, 1)]
  const turn = (mirror: number): [number, number] => tokens.reduce(([c, s], token) => {
    const [x, y, u, v] = [own[token * 2]! - ox, mirror * (own[token * 2 + 1]! - oy), goal[token * 2]! - gx, goal[token * 2 + 1]! - gy]
    return [c + x * u + y * v, s + x * v - y * u] as [number, number]
  }, [0, 0] as [number, number])
  const [plain, mirrored] = [turn(1), turn(-1)]
  const mirror = Math.hypot(...mirrored) > Math.hypot(...plain) ? -1 : 1
  const [c, s] = mirror < 0 ? mirrored : plain
  const long = Math.hypot(c, s) || 1
  return own.map((_, at) => {
    const [x, y] = [own[at - (at % 2)]! - ox, mirror * (own[at - (at % 2) + 1]! - oy)]
    return at % 2 === 0 ? gx + (c * x - s * y) / long : gy + (s * x + c * y) / long
  })
}

export function nearest(places: Float32Array, x: number, y: number, reach = 12): number | null {
  let [best, least] = [-1, reach * reach]
  for (let token = 0; token * 2 < places.length; token++) {
    const far = (places[token * 2]! - x) ** 2 + (places[token * 2 + 1]! - y) ** 2
    if (far < least) [best, least] = [token, far]
  }
  return best < 0 ? null : best
}

export interface Look { width: number; ratio: number; theme: Theme; image: Image; bright: Set<number>; titles: Record<Panel, string>; texts: string[]; before: Images | null }

export function draw(canvas: HTMLCanvasElement, images: Images, look: Look): void {
  const { panels, height } = placed(look.width)
  const context = canvas.getContext('2d')!
  canvas.width = look.width * look.ratio
  canvas.height = height * look.ratio
  context.scale(look.ratio, look.ratio)
  context.textBaseline = 'middle'
  for (const one of panels) {
    context.font = `${one.panel === look.image ? 650 : 450} 12px system-ui, sans-serif`
    context.fillStyle = look.theme.ink
    context.fillText(look.titles[one.panel], one.x, one.y - TOP / 2)
    context.strokeStyle = look.theme.line
    context.strokeRect(one.x + 0.5, one.y + 0.5, one.size - 1, one.size - 1)
    const places = dots(images, one, look.before)
    if (look.before) moved(context, dotsBefore(look.before, images, one), places, look)
    const lined = one.panel === 'E' || one.panel === look.image
    if (lined) for (const [kind, colour] of [['torn', TORN], ['glued', GLUED]] as const) lines(context, images.pairs[look.image][kind], places, colour)
    spots(context, places, look)
    if (lined) names(context, places, one, images, look)
  }
}

function lines(context: CanvasRenderingContext2D, pairs: Pair[], places: Float32Array, colour: string): void {
  context.strokeStyle = colour
  context.lineWidth = 1.6
  for (const { first, second } of pairs) {
    context.beginPath()
    context.moveTo(places[first * 2]!, places[first * 2 + 1]!)
    context.lineTo(places[second * 2]!, places[second * 2 + 1]!)
    context.stroke()
  }
  context.lineWidth = 1
}

/** Rings where tokens lay before, and lines from there. */
function moved(context: CanvasRenderingContext2D, from: Float32Array, to: Float32Array, look: Look): void {
  context.strokeStyle = look.theme.muted
  for (let token = 0; token * 2 < from.length; token++) {
    if (!Number.isFinite(from[token * 2]!) || !Number.isFinite(to[token * 2]!)) continue
    context.globalAlpha = look.bright.size && !look.bright.has(token) ? 0.2 : 0.7
    context.beginPath()
    context.arc(from[token * 2]!, from[token * 2 + 1]!, 2.2, 0, 2 * Math.PI)
    context.moveTo(from[token * 2]!, from[token * 2 + 1]!)
    context.lineTo(to[token * 2]!, to[token * 2 + 1]!)
    context.stroke()
  }
  context.globalAlpha = 1
}

function spots(context: CanvasRenderingContext2D, places: Float32Array, look: Look): void {
  const many = look.bright.size > 0
  for (let token = 0; token * 2 < places.length; token++) {
    if (!Number.isFinite(places[token * 2]!)) continue
    const bright = look.bright.has(token)
    context.globalAlpha = many && !bright ? 0.35 : 0.9
    context.fillStyle = bright ? look.theme.ink : look.theme.muted
    context.beginPath()
    context.arc(places[token * 2]!, places[token * 2 + 1]!, bright ? 4 : 2.2, 0, 2 * Math.PI)
    context.fill()
  }
  context.globalAlpha = 1
}

/** Names of the tokens that stand out, else of those that pairs are made of, where there is room for them. */
function names(context: CanvasRenderingContext2D, places: Float32Array, { x, y, size }: Placed, images: Images, look: Look): void {
  const { torn, glued } = images.pairs[look.image]
  const wanted = look.bright.size ? [...look.bright] : [...torn, ...glued].flatMap(({ first, second }) => [first, second])
  const taken: [number, number, number][] = []
  context.font = '10.5px system-ui, sans-serif'
  for (const token of new Set(wanted)) {
    const text = shortened(look.texts[token] ?? '')
    const wide = context.measureText(text).width
    const left = Math.min(places[token * 2]! + 5, x + size - wide - 3)
    const middle = Math.max(y + 7, Math.min(y + size - 7, places[token * 2 + 1]! - 6))
    if (!Number.isFinite(left) || taken.some(([a, b, w]) => Math.abs(b - middle) < 11 && left < a + w && a < left + wide)) continue
    taken.push([left, middle, wide])
    context.lineWidth = 3
    context.strokeStyle = look.theme.paper
    context.strokeText(text, left, middle)
    context.lineWidth = 1
    context.fillStyle = look.theme.ink
    context.fillText(text, left, middle)
  }
}

/** Where every token stands in each of the four pictures, as rows of a table; those left out have no place. */
export function* places(images: Images, texts: string[]): Generator<(string | number)[]> {
  for (const panel of PANELS) {
    const { values } = images.flat[panel]
    for (let token = 0; token * 2 < values.length; token++) yield [panel, token, texts[token] ?? '', values[token * 2]!, values[token * 2 + 1]!]
  }
}
