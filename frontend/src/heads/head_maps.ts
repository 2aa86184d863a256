/** Maps of all heads (layer × head), side by side on one canvas. */

import { smallestRange } from '../picture/scale'
import { css, rgb, shade, type Theme } from '../palette'

export interface ColourScale { low: number; high: number; centre: number; /** All values are zero up to rounding. */ isRounding: boolean }
export interface HeadMap extends ColourScale { name: string; values: Float32Array; /** Lower and upper end of the confidence interval of each value. */ interval?: [Float32Array, Float32Array] }
/** `hasButtons`: whether every cell has a button, as on a screen without a pointer that hovers. */
export interface Sizes { layers: number; heads: number; width: number; ratio: number; hasButtons: boolean }
export interface MapLayout { cellWidth: number; cellHeight: number; width: number; height: number; lefts: number[]; tops: number[]; buttonSize: number }

const LEFT = 34
const TOP = 22
const BOTTOM = 18

/** Room for maps side by side. In less they are one above the other. */
const SMALLEST_SIDE_BY_SIDE = 480
/** Sizes of a cell that fits a button for a finger and room to select the cell. */
const TOUCH_CELL = { width: 52, height: 30 }
const [BUTTON_SIZE, TOUCH_BUTTON_SIZE] = [20, 24]

/** Positions and cell sizes of the maps. Cells are at most 46 pixels wide, or wide enough for a button that a finger hits. */
export function mapLayout(count: number, { layers, heads, width, hasButtons }: Sizes): MapLayout {
  const columns = width < SMALLEST_SIDE_BY_SIDE ? 1 : count
  const cellWidth = hasButtons ? TOUCH_CELL.width : Math.max(2, Math.min(46, (width / columns - LEFT - 16) / heads))
  const cellHeight = hasButtons ? TOUCH_CELL.height : Math.max(2, Math.min(cellWidth, 26, 420 / layers))
  const room = Math.max(width / columns, LEFT + cellWidth * heads + 16)
  const mapHeight = Math.ceil(TOP + cellHeight * layers + BOTTOM)
  const maps = Array.from({ length: count }, (_, index) => index)
  return {
    cellWidth, cellHeight, width: columns * room, height: (count / columns) * mapHeight, buttonSize: hasButtons ? TOUCH_BUTTON_SIZE : BUTTON_SIZE,
    lefts: maps.map((index) => (index % columns) * room + LEFT), tops: maps.map((index) => Math.floor(index / columns) * mapHeight + TOP),
  }
}

export function headAt(x: number, y: number, maps: MapLayout, sizes: Sizes): { map: number; layer: number; head: number } | null {
  for (let map = maps.lefts.length - 1; map >= 0; map--) {
    const [head, layer] = [Math.floor((x - maps.lefts[map]!) / maps.cellWidth), Math.floor((y - maps.tops[map]!) / maps.cellHeight)]
    if (head >= 0 && head < sizes.heads && layer >= 0 && layer < sizes.layers) return { map, layer, head }
  }
  return null
}

/** Place and size of the button of a head: at the right end of its cell, or above the cell if that is too small. */
export function buttonPosition({ cellWidth, cellHeight, lefts, tops, buttonSize: size }: MapLayout, map: number, layer: number, head: number): { left: number; top: number; size: number } {
  const [right, cellTop] = [lefts[map]! + (head + 1) * cellWidth, tops[map]! + layer * cellHeight]
  if (cellWidth >= 1.6 * size) return { left: right - size - 3, top: cellTop + (cellHeight - size) / 2, size }
  return { left: right - (cellWidth + size) / 2, top: cellTop - size + 3, size }
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
  canvas.width = layout.width * sizes.ratio
  canvas.height = layout.height * sizes.ratio
  context.scale(sizes.ratio, sizes.ratio)
  context.font = '11px system-ui, sans-serif'
  context.textBaseline = 'middle'
  const paper = rgb(theme.paper)
  maps.forEach((map, k) => {
    const [left, top] = [layout.lefts[k]!, layout.tops[k]!]
    context.fillStyle = theme.ink
    context.textAlign = 'left'
    context.fillText(map.name, left, top - TOP / 2 - 2)
    const range = Math.max(Math.abs(map.low - map.centre), Math.abs(map.high - map.centre), 1e-30)
    const gap = layout.cellWidth > 6 ? 1 : 0
    for (let layer = 0; layer < sizes.layers; layer++)
      for (let head = 0; head < sizes.heads; head++) {
        const value = map.values[layer * sizes.heads + head]!
        const [x, y] = [left + head * layout.cellWidth, top + layer * layout.cellHeight]
        context.fillStyle = Number.isFinite(value) ? css(shade((value - map.centre) / range, paper)) : theme.soft
        context.fillRect(x, y, layout.cellWidth - gap, layout.cellHeight - gap)
        if (gap) {
          context.strokeStyle = theme.line
          context.lineWidth = 0.5
          context.strokeRect(x + 0.25, y + 0.25, layout.cellWidth - gap - 0.5, layout.cellHeight - gap - 0.5)
        }
        if (isSilenced(layer, head)) drawCross(context, x, y, layout.cellWidth - gap, layout.cellHeight - gap, theme.ink)
        else if (sizes.hasButtons) drawSilenceIcon(context, buttonPosition(layout, k, layer, head), theme)
      }
    context.fillStyle = theme.muted
    context.textAlign = 'right'
    const everyLayer = Math.ceil(13 / layout.cellHeight)
    for (let layer = 0; layer < sizes.layers; layer += everyLayer) context.fillText(`L${layer}`, left - 5, top + (layer + 0.5) * layout.cellHeight)
    context.textAlign = 'center'
    const everyHead = Math.ceil(18 / layout.cellWidth)
    for (let head = 0; head < sizes.heads; head += everyHead) context.fillText(String(head), left + (head + 0.5) * layout.cellWidth, top + sizes.layers * layout.cellHeight + 9)
    if (selected.layer !== null && selected.head !== null) {
      context.strokeStyle = theme.ink
      context.lineWidth = 2
      context.strokeRect(left + selected.head * layout.cellWidth - 1, top + selected.layer * layout.cellHeight - 1, layout.cellWidth + 1, layout.cellHeight + 1)
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

/** A circle with a bar, on a disc that keeps it readable on any colour. */
function drawSilenceIcon(context: CanvasRenderingContext2D, { left, top, size }: { left: number; top: number; size: number }, theme: Theme): void {
  const [x, y, radius] = [left + size / 2, top + size / 2, size / 3.4]
  context.fillStyle = theme.paper
  context.strokeStyle = theme.ink
  context.lineWidth = 1.3
  context.beginPath()
  context.arc(x, y, radius + 2, 0, 2 * Math.PI)
  context.fill()
  context.beginPath()
  context.arc(x, y, radius, 0, 2 * Math.PI)
  context.moveTo(x - 0.7 * radius, y - 0.7 * radius)
  context.lineTo(x + 0.7 * radius, y + 0.7 * radius)
  context.stroke()
}
