/** Maps of all heads side by side on one canvas, however many heads there are. */

import { css, rgb, shade, type Theme } from '../palette'

/** Values (layer × head); `centred` maps share their own scale around 0. */
export interface HeadMap { name: string; values: Float32Array; low: number; high: number; centre: number; /** Both ends of an interval of each value. */ ends?: [Float32Array, Float32Array] }
export interface Sizes { layers: number; heads: number; width: number; ratio: number }
export interface Laid { cell: number; tall: number; height: number; lefts: number[]; top: number }

const GUTTER = 34
const TOP = 22
const FOOT = 18

/** Where the maps stand: as wide cells as there is room for, at most 46 pixels. */
export function laid(count: number, { layers, heads, width }: Sizes): Laid {
  const room = width / count
  const cell = Math.max(2, Math.min(46, (room - GUTTER - 16) / heads))
  const tall = Math.max(2, Math.min(cell, 26, 420 / layers))
  return { cell, tall, height: Math.ceil(TOP + tall * layers + FOOT), lefts: Array.from({ length: count }, (_, at) => at * room + GUTTER), top: TOP }
}

export function headAt(x: number, y: number, maps: Laid, sizes: Sizes): { map: number; layer: number; head: number } | null {
  for (let map = maps.lefts.length - 1; map >= 0; map--) {
    const [head, layer] = [Math.floor((x - maps.lefts[map]!) / maps.cell), Math.floor((y - maps.top) / maps.tall)]
    if (head >= 0 && head < sizes.heads && layer >= 0 && layer < sizes.layers) return { map, layer, head }
  }
  return null
}

/** Ends of a colour scale: around the centre where values lie on both sides of it. */
export function scaleOf(...all: Float32Array[]): { low: number; high: number; centre: number } {
  let [low, high] = [Infinity, -Infinity]
  for (const values of all) for (const value of values) if (Number.isFinite(value)) [low, high] = [Math.min(low, value), Math.max(high, value)]
  if (low > high) return { low: 0, high: 1, centre: 0 }
  const reach = Math.max(Math.abs(low), Math.abs(high)) || 1
  return low < 0 ? { low: -reach, high: reach, centre: 0 } : { low: 0, high: reach, centre: 0 }
}

export function draw(canvas: HTMLCanvasElement, maps: HeadMap[], sizes: Sizes, theme: Theme, chosen: { layer: number | null; head: number | null }): Laid {
  const at = laid(maps.length, sizes)
  const context = canvas.getContext('2d')!
  canvas.width = sizes.width * sizes.ratio
  canvas.height = at.height * sizes.ratio
  context.scale(sizes.ratio, sizes.ratio)
  context.font = '11px system-ui, sans-serif'
  context.textBaseline = 'middle'
  const paper = rgb(theme.paper)
  maps.forEach((map, k) => {
    const left = at.lefts[k]!
    context.fillStyle = theme.ink
    context.textAlign = 'left'
    context.fillText(map.name, left, TOP / 2 - 2)
    const reach = Math.max(Math.abs(map.low - map.centre), Math.abs(map.high - map.centre), 1e-30)
    const gap = at.cell > 6 ? 1 : 0
    for (let layer = 0; layer < sizes.layers; layer++)
      for (let head = 0; head < sizes.heads; head++) {
        const value = map.values[layer * sizes.heads + head]!
        const [x, y] = [left + head * at.cell, TOP + layer * at.tall]
        context.fillStyle = Number.isFinite(value) ? css(shade((value - map.centre) / reach, paper)) : theme.soft
        context.fillRect(x, y, at.cell - gap, at.tall - gap)
        if (gap) {
          context.strokeStyle = theme.line
          context.lineWidth = 0.5
          context.strokeRect(x + 0.25, y + 0.25, at.cell - gap - 0.5, at.tall - gap - 0.5)
        }
      }
    context.fillStyle = theme.muted
    context.textAlign = 'right'
    const everyLayer = Math.ceil(13 / at.tall)
    for (let layer = 0; layer < sizes.layers; layer += everyLayer) context.fillText(`L${layer}`, left - 5, TOP + (layer + 0.5) * at.tall)
    context.textAlign = 'center'
    const everyHead = Math.ceil(18 / at.cell)
    for (let head = 0; head < sizes.heads; head += everyHead) context.fillText(String(head), left + (head + 0.5) * at.cell, TOP + sizes.layers * at.tall + 9)
    if (chosen.layer !== null && chosen.head !== null) {
      context.strokeStyle = theme.ink
      context.lineWidth = 2
      context.strokeRect(left + chosen.head * at.cell - 1, TOP + chosen.layer * at.tall - 1, at.cell + 1, at.tall + 1)
    }
  })
  return at
}
