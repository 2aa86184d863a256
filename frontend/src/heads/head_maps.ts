/** Maps of all heads (layer × head), side by side on one canvas. */

import { smallestRange } from '../picture/scale'
import { css, rgb, shade, type Theme } from '../palette'

export interface ColourScale { low: number; high: number; centre: number; /** All values are zero up to rounding. */ isRounding: boolean }
export interface HeadMap extends ColourScale { name: string; values: Float32Array; /** Lower and upper end of the confidence interval of each value. */ interval?: [Float32Array, Float32Array] }
export interface Sizes { layers: number; heads: number; width: number; ratio: number }
export interface MapLayout { cellWidth: number; cellHeight: number; height: number; lefts: number[]; top: number }

const LEFT = 34
const TOP = 22
const BOTTOM = 18

/** Positions and cell sizes of the maps. Cells are at most 46 pixels wide. */
export function mapLayout(count: number, { layers, heads, width }: Sizes): MapLayout {
  const room = width / count
  const cellWidth = Math.max(2, Math.min(46, (room - LEFT - 16) / heads))
  const cellHeight = Math.max(2, Math.min(cellWidth, 26, 420 / layers))
  return { cellWidth, cellHeight, height: Math.ceil(TOP + cellHeight * layers + BOTTOM), lefts: Array.from({ length: count }, (_, index) => index * room + LEFT), top: TOP }
}

export function headAt(x: number, y: number, maps: MapLayout, sizes: Sizes): { map: number; layer: number; head: number } | null {
  for (let map = maps.lefts.length - 1; map >= 0; map--) {
    const [head, layer] = [Math.floor((x - maps.lefts[map]!) / maps.cellWidth), Math.floor((y - maps.top) / maps.cellHeight)]
    if (head >= 0 && head < sizes.heads && layer >= 0 && layer < sizes.layers) return { map, layer, head }
  }
  return null
}

const BUTTON_SIZE = 20

/** Place and size of the button of a head: at the right end of its cell, or above the cell if that is too small. */
export function buttonPosition({ cellWidth, cellHeight, lefts, top }: MapLayout, map: number, layer: number, head: number): { left: number; top: number; size: number } {
  const [right, cellTop] = [lefts[map]! + (head + 1) * cellWidth, top + layer * cellHeight]
  if (cellWidth >= 1.6 * BUTTON_SIZE) return { left: right - BUTTON_SIZE - 3, top: cellTop + (cellHeight - BUTTON_SIZE) / 2, size: BUTTON_SIZE }
  return { left: right - (cellWidth + BUTTON_SIZE) / 2, top: cellTop - BUTTON_SIZE + 3, size: BUTTON_SIZE }
}

/** Range of a colour scale, symmetric around 0 if some values are negative. Values that are zero up to rounding get no colour. */
export function colourScale(all: Float32Array[], naturalSizes: Float32Array[] = []): ColourScale {
  let [low, high] = [Infinity, -Infinity]
  for (const values of all) for (const value of values) if (Number.isFinite(value)) [low, high] = [Math.min(low, value), Math.max(high, value)]
  if (low > high) return { low: 0, high: 1, centre: 0, isRounding: false }
  const [size, smallest] = [Math.max(Math.abs(low), Math.abs(high)), smallestRange(...naturalSizes)]
  const range = size ? Math.max(size, smallest) : 1
  return { low: low < 0 ? -range : 0, high: range, centre: 0, isRounding: size > 0 && size < smallest }
}

export function drawHeadMaps(canvas: HTMLCanvasElement, maps: HeadMap[], sizes: Sizes, theme: Theme, selected: { layer: number | null; head: number | null }, isSilenced: (layer: number, head: number) => boolean): MapLayout {
  const layout = mapLayout(maps.length, sizes)
  const context = canvas.getContext('2d')!
  canvas.width = sizes.width * sizes.ratio
  canvas.height = layout.height * sizes.ratio
  context.scale(sizes.ratio, sizes.ratio)
  context.font = '11px system-ui, sans-serif'
  context.textBaseline = 'middle'
  const paper = rgb(theme.paper)
  maps.forEach((map, k) => {
    const left = layout.lefts[k]!
    context.fillStyle = theme.ink
    context.textAlign = 'left'
    context.fillText(map.name, left, TOP / 2 - 2)
    const range = Math.max(Math.abs(map.low - map.centre), Math.abs(map.high - map.centre), 1e-30)
    const gap = layout.cellWidth > 6 ? 1 : 0
    for (let layer = 0; layer < sizes.layers; layer++)
      for (let head = 0; head < sizes.heads; head++) {
        const value = map.values[layer * sizes.heads + head]!
        const [x, y] = [left + head * layout.cellWidth, TOP + layer * layout.cellHeight]
        context.fillStyle = Number.isFinite(value) ? css(shade((value - map.centre) / range, paper)) : theme.soft
        context.fillRect(x, y, layout.cellWidth - gap, layout.cellHeight - gap)
        if (gap) {
          context.strokeStyle = theme.line
          context.lineWidth = 0.5
          context.strokeRect(x + 0.25, y + 0.25, layout.cellWidth - gap - 0.5, layout.cellHeight - gap - 0.5)
        }
        if (isSilenced(layer, head)) drawCross(context, x, y, layout.cellWidth - gap, layout.cellHeight - gap, theme.ink)
      }
    context.fillStyle = theme.muted
    context.textAlign = 'right'
    const everyLayer = Math.ceil(13 / layout.cellHeight)
    for (let layer = 0; layer < sizes.layers; layer += everyLayer) context.fillText(`L${layer}`, left - 5, TOP + (layer + 0.5) * layout.cellHeight)
    context.textAlign = 'center'
    const everyHead = Math.ceil(18 / layout.cellWidth)
    for (let head = 0; head < sizes.heads; head += everyHead) context.fillText(String(head), left + (head + 0.5) * layout.cellWidth, TOP + sizes.layers * layout.cellHeight + 9)
    if (selected.layer !== null && selected.head !== null) {
      context.strokeStyle = theme.ink
      context.lineWidth = 2
      context.strokeRect(left + selected.head * layout.cellWidth - 1, TOP + selected.layer * layout.cellHeight - 1, layout.cellWidth + 1, layout.cellHeight + 1)
    }
  })
  return layout
}

function drawCross(context: CanvasRenderingContext2D, x: number, y: number, width: number, height: number, colour: string): void {
  context.strokeStyle = colour
  context.lineWidth = 1.5
  context.beginPath()
  context.moveTo(x, y)
  context.lineTo(x + width, y + height)
  context.moveTo(x + width, y)
  context.lineTo(x, y + height)
  context.stroke()
}
