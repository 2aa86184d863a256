/** Draws a map with the names of its tokens on both axes. A row and a column of it appear as bars. */

import { css, PALETTE, rgb, shade, type Theme } from '../palette'
import { axisName, BAR_LENGTH, type MapSize } from './map_axes'
import type { Scale } from './weight_ranges'

export interface NamedCells {
  values: Float32Array
  rows: string[]
  columns: string[]
  /** Index of the row and of the column that are drawn as bars; −1: none. */
  row: number
  column: number
}

const GAP = 5

export function drawNamedMap(canvas: HTMLCanvasElement, cells: NamedCells, size: MapSize, scale: Scale, ratio: number, theme: Theme): void {
  const context = canvas.getContext('2d')!
  ;[canvas.width, canvas.height] = [Math.ceil(size.width * ratio), Math.ceil(size.height * ratio)]
  context.scale(ratio, ratio)
  drawCells(context, cells, size, scale, theme)
  drawNames(context, cells, size, theme)
  drawBars(context, cells, size, scale, theme)
}

function drawCells(context: CanvasRenderingContext2D, { values, rows, columns }: NamedCells, { cell, labels }: MapSize, scale: Scale, theme: Theme): void {
  const paper = rgb(theme.paper)
  for (const [index, value] of values.entries()) {
    context.fillStyle = Number.isFinite(value) ? css(shade(value / scale.high, paper)) : theme.soft
    context.fillRect(labels + (index % columns.length) * cell, labels + Math.floor(index / columns.length) * cell, cell, cell)
  }
  context.strokeStyle = theme.line
  context.strokeRect(labels, labels, columns.length * cell, rows.length * cell)
}

function drawNames(context: CanvasRenderingContext2D, { rows, columns, row, column }: NamedCells, { cell, labels }: MapSize, theme: Theme): void {
  const select = (isSelected: boolean) => {
    context.font = `${isSelected ? 'bold ' : ''}${Math.min(11.5, cell)}px ui-monospace, "SF Mono", Menlo, Consolas, monospace`
    context.fillStyle = isSelected ? theme.ink : theme.muted
  }
  context.textBaseline = 'middle'
  context.textAlign = 'right'
  rows.forEach((name, index) => {
    select(index === row)
    context.fillText(axisName(name), labels - GAP, labels + (index + 0.5) * cell)
  })
  context.textAlign = 'left'
  columns.forEach((name, index) => {
    select(index === column)
    context.save()
    context.translate(labels + (index + 0.5) * cell, labels - GAP)
    context.rotate(-Math.PI / 2)
    context.fillText(axisName(name), 0, 0)
    context.restore()
  })
}

function drawBars(context: CanvasRenderingContext2D, { values, rows, columns, row, column }: NamedCells, { cell, labels }: MapSize, scale: Scale, theme: Theme): void {
  const [right, bottom] = [labels + columns.length * cell, labels + rows.length * cell]
  const lengthOf = (value: number): number => {
    context.fillStyle = value < 0 ? PALETTE.second! : PALETTE.first!
    return Number.isFinite(value) ? Math.min(1, Math.abs(value) / scale.high) * BAR_LENGTH : 0
  }
  context.strokeStyle = theme.muted
  if (row >= 0) {
    context.strokeRect(labels, labels + row * cell, right - labels, cell)
    columns.forEach((_, index) => context.fillRect(labels + index * cell + 1, bottom + GAP, cell - 2, lengthOf(values[row * columns.length + index]!)))
  }
  if (column >= 0) {
    context.strokeRect(labels + column * cell, labels, cell, bottom - labels)
    rows.forEach((_, index) => context.fillRect(right + GAP, labels + index * cell + 1, lengthOf(values[index * columns.length + column]!), cell - 2))
  }
}
