/** A texture that contains every label once. Whole texts keep their shaping and direction. */

export const FONT_SIZE = 13
export const MARGIN = 3
export const FONT = 'system-ui, -apple-system, "Segoe UI", sans-serif'
const MAX_LETTERS = 18

export interface AtlasEntry { u: number; v: number; width: number; height: number }

export interface TextAtlas { canvas: HTMLCanvasElement; entries: Map<string, AtlasEntry>; ratio: number }

/** A short version of a text. Control characters, which could reverse or break a label, are shown as □. */
export function shortenText(text: string): string {
  const characters = [...text.replace(/[\u0000-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, '□')]
  return characters.length > MAX_LETTERS ? characters.slice(0, MAX_LETTERS - 1).join('') + '…' : characters.join('')
}

export function textWidth(context: CanvasRenderingContext2D, text: string): number {
  return Math.ceil(context.measureText(text).width) + 2 * MARGIN
}

/** All distinct texts on a canvas 2048 pixels wide and at most 4096 high. Texts beyond that get no label. */
export function buildAtlas(texts: Iterable<string>, ratio: number): TextAtlas {
  const canvas = document.createElement('canvas')
  const context = canvas.getContext('2d')!
  const font = `500 ${FONT_SIZE}px ${FONT}`
  context.font = font
  const atlasWidth = 2048
  const height = FONT_SIZE + 2 * MARGIN + 2
  const entries = new Map<string, AtlasEntry>()
  let [x, y] = [0, 0]
  for (const text of new Set(texts)) {
    const width = textWidth(context, text)
    if ((x + width) * ratio > atlasWidth) [x, y] = [0, y + height + 1]
    if ((y + height) * ratio > 4096) break
    entries.set(text, { u: x, v: y, width, height })
    x += width + 1
  }
  canvas.width = atlasWidth
  canvas.height = Math.max(1, Math.min(4096, Math.ceil((y + height) * ratio)))
  context.scale(ratio, ratio)
  context.font = font
  context.textBaseline = 'middle'
  context.lineJoin = 'round'
  context.lineWidth = 3.5
  for (const [text, { u, v }] of entries) {
    context.strokeStyle = '#000'
    context.strokeText(text, u + MARGIN, v + height / 2)
    context.fillStyle = '#fff'
    context.fillText(text, u + MARGIN, v + height / 2)
  }
  return { canvas, entries, ratio }
}
