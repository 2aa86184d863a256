/** Colours of cells. A map with too many cells for rectangles becomes an image with one pixel per cell. */

import { mix, PALETTE, rgb, shade, type Rgb, type Theme } from '../palette'
import type { Cells } from '../api'
import type { Text } from '../messages/message'
import { shadeOf } from './scale'

export const MAX_RECTANGLES = 900

/** A missing value is grey, which is not a colour of the scale. */
export function cellColour(cells: Cells<Text>, value: number | null, paper: Rgb): Rgb {
  return value === null || Number.isNaN(value) ? mix(paper, rgb(PALETTE.null!), 0.25) : shade(shadeOf(cells, value), paper)
}

export function cellsImage(cells: Cells<Text>, theme: Theme): string {
  const [rows, columns] = [cells.values.length, cells.values[0]?.length ?? 0]
  const canvas = document.createElement('canvas')
  ;[canvas.width, canvas.height] = [columns, rows]
  const context = canvas.getContext('2d')!
  const image = context.createImageData(columns, rows)
  const paper = rgb(theme.paper)
  cells.values.forEach((row, y) => row.forEach((value, x) => {
    image.data.set([...cellColour(cells, value, paper), 255], (y * columns + x) * 4)
  }))
  context.putImageData(image, 0, 0)
  return canvas.toDataURL()
}
