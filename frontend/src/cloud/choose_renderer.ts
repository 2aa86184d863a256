/** Which renderer draws the cloud. WebGL without a graphics card is slower than a 2D canvas. */

import { CanvasRenderer } from './canvas_renderer'
import type { Renderer } from './renderer'
import { WebGlRenderer } from './webgl_renderer'

export type RendererKind = 'webgl' | 'canvas'

/** Renderers that run on the processor: SwiftShader in Chromium, llvmpipe and softpipe in Firefox on Linux, WARP on Windows, Apple's. */
const SOFTWARE = /swiftshader|llvmpipe|softpipe|software|microsoft basic render/i

/** WebGL if a graphics card draws it. `deviceName` is the name of what draws WebGL, null without WebGL. */
export const fasterRenderer = (deviceName: string | null): RendererKind => (deviceName === null || SOFTWARE.test(deviceName) ? 'canvas' : 'webgl')

/** The name of what draws WebGL, null without WebGL. A canvas has one kind of context for life, so another canvas is asked. */
function webGlDevice(): string | null {
  const gl = document.createElement('canvas').getContext('webgl2')
  if (!gl) return null
  const info = gl.getExtension('WEBGL_debug_renderer_info')
  const name = String(gl.getParameter(info ? info.UNMASKED_RENDERER_WEBGL : gl.RENDERER))
  gl.getExtension('WEBGL_lose_context')?.loseContext()
  return name
}

let chosen: RendererKind | null = null

/** The renderer of this browser. `rheoscope renderer` in its local storage, 'webgl' or 'canvas', overrides the choice. */
export function chooseRenderer(): RendererKind {
  return (chosen ??= storedChoice() ?? fasterRenderer(webGlDevice()))
}

function storedChoice(): RendererKind | null {
  try {
    const value = localStorage.getItem('rheoscope renderer')
    return value === 'webgl' || value === 'canvas' ? value : null
  } catch {
    return null
  }
}

/** The renderer for a canvas. If WebGL is chosen but cannot be had, it is the 2D renderer. */
export const createRenderer = (canvas: HTMLCanvasElement): Renderer =>
  chooseRenderer() === 'webgl' && canvas.getContext('webgl2', { alpha: true, antialias: true }) !== null ? new WebGlRenderer(canvas) : new CanvasRenderer(canvas)
