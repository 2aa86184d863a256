/** Coordinates of a strip: a panel without margins, whose axes have fixed ranges. */

import { Frame } from '../picture/layout'
import type { RenderedPanel } from '../picture/render_panel'

export const STRIP_WIDTH = 360
export const STRIP_HEIGHT = 26

export class StripFrame extends Frame {
  constructor(panel: RenderedPanel) { super(panel, STRIP_WIDTH, STRIP_HEIGHT) }
  override x(value: number): number { return ((value - this.xs[0]) / (this.xs[1] - this.xs[0])) * STRIP_WIDTH }
  override y(value: number): number { return (1 - (value - this.ys[0]) / (this.ys[1] - this.ys[0])) * STRIP_HEIGHT }
}
