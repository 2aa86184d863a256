/** What pointers on a cloud do: one rotates it (with shift: pans), two zoom, as the wheel does, and a double click resets the view. */

import { panCamera, rotateCamera, START, zoomCamera, type Camera } from './camera'

export interface Pixel { x: number; y: number }
export interface PointerActions {
  moveCamera(change: (camera: Camera) => Camera): void
  /** The token under the pointer is highlighted. Null: the pointer has left the cloud. */
  hover(pixel: Pixel | null): void
  click(pixel: Pixel, event: PointerEvent): void
}

/** A pointer that moved farther, in pixels, has dragged and not clicked. */
const MAX_CLICK_MOVEMENT = 4

export function addPointerListeners(target: HTMLCanvasElement, { moveCamera, hover, click }: PointerActions): void {
  const pointers = new Map<number, PointerEvent>()
  let dragDistance = 0
  const pixelOf = (event: PointerEvent): Pixel => {
    const rect = target.getBoundingClientRect()
    return { x: event.clientX - rect.left, y: event.clientY - rect.top }
  }
  target.addEventListener('pointerdown', (event) => {
    target.setPointerCapture(event.pointerId)
    pointers.set(event.pointerId, event)
    dragDistance = 0
  })
  target.addEventListener('pointermove', (event) => {
    const before = pointers.get(event.pointerId)
    if (!before) return hover(pixelOf(event))
    const [dx, dy] = [event.clientX - before.clientX, event.clientY - before.clientY]
    dragDistance += Math.abs(dx) + Math.abs(dy)
    if (pointers.size === 2) {
      const other = [...pointers.values()].find((pointer) => pointer.pointerId !== event.pointerId)!
      const gap = (pointer: PointerEvent) => Math.hypot(pointer.clientX - other.clientX, pointer.clientY - other.clientY)
      moveCamera((camera) => zoomCamera(camera, gap(before) / Math.max(1, gap(event))))
    } else moveCamera((camera) => (event.shiftKey ? panCamera(camera, dx, dy, target.clientWidth, target.clientHeight) : rotateCamera(camera, dx, dy)))
    pointers.set(event.pointerId, event)
  })
  target.addEventListener('pointerup', (event) => {
    pointers.delete(event.pointerId)
    if (dragDistance <= MAX_CLICK_MOVEMENT) click(pixelOf(event), event)
  })
  target.addEventListener('pointercancel', (event) => pointers.delete(event.pointerId))
  target.addEventListener('pointerleave', () => hover(null))
  target.addEventListener('wheel', (event) => {
    event.preventDefault()
    moveCamera((camera) => zoomCamera(camera, Math.exp(event.deltaY * 0.0012)))
  }, { passive: false })
  target.addEventListener('dblclick', () => moveCamera(() => START))
}
