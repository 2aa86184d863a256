/** The colour of a cell, and a map of cells as one small picture, a pixel a cell, for maps too large for rectangles. */

import { mix, PALETTE, rgb, shade, type Rgb, type Theme } from '../palette'
import type { Cells } from '../wire'
import { shadeOf } from './scale'

export const MANY = 900

/** Grey where there is no number: no colour of the scale. */
export function colourOfCell(cells: Cells, value: number | null, paper: Rgb): Rgb {
  return value === null || Number.isNaN(value) ? mix(paper, rgb(PALETTE.null!), 0.25) : shade(shadeOf(cells, value), paper)
}

export function pixels(cells: Cells, theme: Theme): string {
  const [rows, columns] = [cells.values.length, cells.values[0]?.length ?? 0]
  const canvas = document.createElement('canvas')
  ;[canvas.width, canvas.height] = [columns, rows]
  const context = canvas.getContext('2d')!
  const image = context.createImageData(columns, rows)
  const paper = rgb(theme.paper)
  cells.values.forEach((row, y) => row.forEach((value, x) => {
    image.data.set([...colourOfCell(cells, value, paper), 255], (y * columns + x) * 4)
  }))
  context.putImageData(image, 0, 0)
  return canvas.toDataURL()
}
