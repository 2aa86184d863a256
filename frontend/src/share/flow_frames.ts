/** Frames of the flow: the cloud between two steps, the step, the end of the text and the prediction there. */

import { percent } from '../axes'
import type { Studio } from '../studio.svelte'
import type { GifFrame } from './gif'

export interface Size { width: number; height: number }

const HEADER = 40
const MAX_FRAMES = 80
const FRAME_DELAY = 8
/** At every step, and at the last one. */
const STEP_DELAY = 35
const END_DELAY = 220

/** Positions of the playhead: as many between two steps as a limit for the file allows. */
export function playheads(steps: number): number[] {
  const between = Math.max(1, Math.min(6, Math.floor(MAX_FRAMES / Math.max(1, steps - 1))))
  return Array.from({ length: (steps - 1) * between + 1 }, (_, k) => k / between)
}

/** Draws one frame. `scale` is the number of pixels per unit of `size`. */
export function drawFrame(studio: Studio, canvas: HTMLCanvasElement, playhead: number, { width, height }: Size, scale = 1): void {
  const cloud = document.createElement('canvas')
  studio.drawCloud?.(cloud, playhead, { width, height: height - HEADER, ratio: scale })
  ;[canvas.width, canvas.height] = [width * scale, height * scale]
  const context = canvas.getContext('2d', { willReadFrequently: true })!
  context.fillStyle = studio.theme.paper
  context.fillRect(0, 0, canvas.width, canvas.height)
  context.drawImage(cloud, 0, HEADER * scale)
  context.scale(scale, scale)
  context.textBaseline = 'middle'
  context.font = '600 15px system-ui, sans-serif'
  context.fillStyle = studio.theme.ink
  const step = Math.round(playhead)
  const top = studio.trace?.prediction?.[step]?.top[0]
  const ending = [...(studio.info?.text ?? '')].slice(-36).join('').replace(/^\S*\s/, '')
  context.fillText(`… ${ending}${top ? ` → ${top.shown.replaceAll('·', '')} (${percent(top.probability)} %)` : ''}`, 12, HEADER / 2)
  context.textAlign = 'right'
  context.fillStyle = studio.theme.muted
  context.fillText(studio.stepLabel(studio.info?.steps[step] ?? ''), width - 12, HEADER / 2)
}

/** All frames of the flow. `onProgress` gets the share that is drawn. */
export async function flowFrames(studio: Studio, size: Size, onProgress: (share: number) => void): Promise<GifFrame[]> {
  const positions = playheads(studio.info?.steps.length ?? 1)
  const canvas = document.createElement('canvas')
  const frames: GifFrame[] = []
  for (const position of positions) {
    drawFrame(studio, canvas, position, size)
    const isLast = position === positions.at(-1)
    frames.push({ pixels: canvas.getContext('2d')!.getImageData(0, 0, size.width, size.height).data, delay: isLast ? END_DELAY : Number.isInteger(position) ? STEP_DELAY : FRAME_DELAY })
    onProgress(frames.length / positions.length)
    await new Promise((resolve) => setTimeout(resolve))
  }
  return frames
}
