/** Where the labels of a panel are drawn. The server places them for a wide panel, so on a narrow one some would cover others. */

import type { Label } from '../api'
import { LETTER_WIDTH, truncate, type Frame } from './layout'
import type { RenderedMark } from './render_panel'
import { textWidth } from './text_width'

export interface PlacedLabel { text: string; x: number; y: number; anchor: 'start' | 'middle' | 'end'; strong: boolean }

/** The largest fraction of a label that an earlier label may cover. */
const MAX_COVERED = 0.2
/** Heights above and below the baseline of a text. */
const [ASCENT, DESCENT] = [9, 3]
const SIDES: Record<string, [PlacedLabel['anchor'], number, number]> = { left: ['end', -1, 4], right: ['start', 1, 4], above: ['middle', 0, -1], below: ['middle', 0, 1], middle: ['middle', 0, 4] }

function placeLabel(frame: Frame, { x, y, text, side, strong }: Label<string>): PlacedLabel {
  const gap = strong ? 10 : 6
  const [anchor, across, down] = SIDES[side] ?? SIDES.right!
  const drop = side === 'above' ? -gap : side === 'below' ? gap + 8 : down
  return { text: truncate(text, side === 'middle' ? Math.floor(frame.width / LETTER_WIDTH) - 2 : 18), x: frame.x(x) + across * gap, y: frame.y(y) + drop, anchor, strong }
}

interface Box { left: number; right: number; top: number; bottom: number }
function boxOf({ text, x, y, anchor }: PlacedLabel): Box {
  const width = textWidth(text)
  const left = anchor === 'start' ? x : anchor === 'end' ? x - width : x - width / 2
  return { left, right: left + width, top: y - ASCENT, bottom: y + DESCENT }
}

/** The fraction of a box that another box covers. */
function coveredFraction(box: Box, other: Box): number {
  const [width, height] = [Math.min(box.right, other.right) - Math.max(box.left, other.left), Math.min(box.bottom, other.bottom) - Math.max(box.top, other.top)]
  return (Math.max(0, width) * Math.max(0, height)) / ((box.right - box.left) * (box.bottom - box.top) || 1)
}

/** The labels that fit, in their order of priority: a label is left out if it and an earlier one would cover each other. */
export function placedLabels(frame: Frame, marks: readonly RenderedMark[], isZoomed: boolean): PlacedLabel[] {
  const placed: { label: PlacedLabel; box: Box }[] = []
  for (const mark of marks) {
    if (mark.mark !== 'label' || (isZoomed && !frame.contains(frame.x(mark.x), frame.y(mark.y)))) continue
    const label = placeLabel(frame, mark)
    const box = boxOf(label)
    if (placed.every((other) => Math.max(coveredFraction(box, other.box), coveredFraction(other.box, box)) <= MAX_COVERED)) placed.push({ label, box })
  }
  return placed.map(({ label }) => label)
}
