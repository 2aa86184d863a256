/** Words drawn once each on one sheet, from which every label is cut; a whole word keeps its shaping and direction. */

export const LETTERS = 13
export const MARGIN = 3
export const FONT = 'system-ui, -apple-system, "Segoe UI", sans-serif'
const LONGEST = 18

export interface Cut { u: number; v: number; width: number; height: number }

export interface Sheet { canvas: HTMLCanvasElement; cuts: Map<string, Cut>; ratio: number }

/** Marks that would turn a label around or break its line are shown as what they are. */
export function shortened(text: string): string {
  const letters = [...text.replace(/[\u0000-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, '□')]
  return letters.length > LONGEST ? letters.slice(0, LONGEST - 1).join('') + '…' : letters.join('')
}

export function widthOf(context: CanvasRenderingContext2D, text: string): number {
  return Math.ceil(context.measureText(text).width) + 2 * MARGIN
}

/** All distinct words on a canvas 2048 pixels wide, as high as it takes (4096 at most; words beyond it have no label). */
export function sheetOf(texts: Iterable<string>, ratio: number): Sheet {
  const canvas = document.createElement('canvas')
  const context = canvas.getContext('2d')!
  const font = `500 ${LETTERS}px ${FONT}`
  context.font = font
  const side = 2048
  const height = LETTERS + 2 * MARGIN + 2
  const cuts = new Map<string, Cut>()
  let [x, y] = [0, 0]
  for (const text of new Set(texts)) {
    const width = widthOf(context, text)
    if ((x + width) * ratio > side) [x, y] = [0, y + height + 1]
    if ((y + height) * ratio > 4096) break
    cuts.set(text, { u: x, v: y, width, height })
    x += width + 1
  }
  canvas.width = side
  canvas.height = Math.max(1, Math.min(4096, Math.ceil((y + height) * ratio)))
  context.scale(ratio, ratio)
  context.font = font
  context.textBaseline = 'middle'
  context.lineJoin = 'round'
  context.lineWidth = 3.5
  for (const [text, { u, v }] of cuts) {
    context.strokeStyle = '#000'
    context.strokeText(text, u + MARGIN, v + height / 2)
    context.fillStyle = '#fff'
    context.fillText(text, u + MARGIN, v + height / 2)
  }
  return { canvas, cuts, ratio }
}
